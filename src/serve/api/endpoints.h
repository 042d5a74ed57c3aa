// What a model tells of itself and of its text side: /props, /slots, /tokenize, /detokenize, /apply-template.
#pragma once
#include "serve/api/openai.h"

namespace carat {

Json props(const ApiContext& api);
Json input_modalities(const ApiContext& api);  // ["text", "image"]: what a message may show to the model
// What runs, in numbers: texts are nobody else's business. Slots are appended to `list`.
void add_slots(const ApiContext& api, Json& list);
HttpResponse tokenize(const ApiContext& api, const HttpRequest& request);
HttpResponse detokenize(const ApiContext& api, const HttpRequest& request);
HttpResponse count_chat_tokens(const ApiContext& api, const HttpRequest& request);
HttpResponse apply_template(const ApiContext& api, const HttpRequest& request);

}  // namespace carat
