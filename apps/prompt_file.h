// Texts that stay read between runs of the program: what `carat run` loads and saves (state/snapshot.h).
#pragma once
#include <functional>
#include <string>

#include "engine/engine.h"

namespace CLI {
class App;
}

namespace carat {

struct PromptFileFlags {
  std::string load_state, save_state, save_prompt, cache;
  bool cache_all = false, cache_read_only = false;
  bool any() const { return !(load_state + save_state + save_prompt + cache).empty(); }
};
// --load-state (--load-prompt), --save-state, --save-prompt, and llama.cpp's --prompt-cache FILE,
// --prompt-cache-all, --prompt-cache-ro
void add_prompt_file_flags(CLI::App& app, PromptFileFlags& flags);
// Error with a hint if they contradict each other.
void check_prompt_files(const PromptFileFlags& flags);

// What a request loads and saves of a prompt that is all there. read: runs a request to its end; with
// --save-prompt the prompt is read and saved by one of its own, as its last token belongs to the answer.
// first: of the program's conversation. Error if a file is damaged, or not one of this model.
void use_prompt_files(const PromptFileFlags& flags, const Model& model, bool first, Request& request,
                      const std::function<void(Request)>& read);

}  // namespace carat
