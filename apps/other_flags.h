// Command lines written for vLLM and for Luce's server: their flags of `serve` under our names, those that
// change nothing here left out, those that cannot work refused (docs/operations.md, vLLM's flags).
// llama.cpp's come behind (llama_flags.h).
#pragma once
#include "apps/llama_flags.h"

namespace carat {

Translated translate_other_flags(const std::vector<std::string>& args,
                                 const std::function<bool(std::string_view)>& own);

}  // namespace carat
