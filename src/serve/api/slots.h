// POST /slots/{id}?action=save|restore|erase, as llama.cpp's server has it: the text that the last request in
// a slot ended with goes to a file, or comes from one into the prefix cache.
#pragma once
#include "serve/api/openai.h"

namespace carat {

// Files are in ServeConfig::slot_save_path. ApiError for a client's mistakes.
HttpResponse slot_action(const ApiContext& api, const HttpRequest& request);

}  // namespace carat
