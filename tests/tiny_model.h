// Small random models for tests, as GGUF files: made once per process, deleted when it ends.
#pragma once
#include <string>
#include <string_view>

namespace carat {

// shape: "tiny", "tiny-moe", "tiny-e" (src/tools/shapes.h); type: any that `carat forge` takes. Returns the
// path.
std::string tiny_model(std::string_view shape = "tiny", std::string_view type = "q4_k_m", unsigned seed = 1);

// A directory of this process that is removed when it ends.
std::string test_directory();

}  // namespace carat
