#include "apps/prompt_file.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "engine/prefix/kept_texts.h"
#include "engine/soft_rows.h"
#include "state/snapshot.h"

namespace carat {

void add_prompt_file_flags(CLI::App& app, PromptFileFlags& f) {
  app.add_option("--save-state", f.save_state,
                 "Write the sequence's caches to this file when an answer ends");
  app.add_option("--load-state,--load-prompt", f.load_state,
                 "Begin with a saved sequence: with --raw the prompt continues its text, else it must be the "
                 "beginning of the conversation");
  app.add_option("--save-prompt", f.save_prompt,
                 "Write the first prompt's caches to this file once it is read, before the answer");
  app.add_option("--prompt-cache", f.cache,
                 "Begin with what this file holds of the prompt, and save the prompt there");
  app.add_flag("--prompt-cache-all", f.cache_all, "With --prompt-cache: save the answers, too");
  app.add_flag("--prompt-cache-ro", f.cache_read_only, "With --prompt-cache: save nothing");
}

void check_prompt_files(const PromptFileFlags& f) {
  if (f.cache.empty() && (f.cache_all || f.cache_read_only))
    throw Error(fmt::format("{} needs a file", f.cache_all ? "--prompt-cache-all" : "--prompt-cache-ro"),
                "give it with --prompt-cache FILE");
  if (f.cache_all && f.cache_read_only)
    throw Error("--prompt-cache-all saves and --prompt-cache-ro does not", "leave one of them out");
  if (!f.cache.empty() && !(f.load_state + f.save_state + f.save_prompt).empty())
    throw Error("--prompt-cache loads and saves by itself",
                "leave out --load-state, --save-state and --save-prompt");
}

namespace {

bool begins(const std::vector<Token>& text, const std::vector<Token>& start) {
  return start.size() < text.size() && std::equal(start.begin(), start.end(), text.begin());
}

// The prompt but for its last token, from which the answer follows.
void read_and_save(const std::string& path, Request& request, const std::function<void(Request)>& read) {
  if (request.prompt.size() < 2) return;
  Request alone;
  alone.prompt.assign(request.prompt.begin(), request.prompt.end() - 1);
  alone.soft = request.soft;
  alone.load_state = request.load_state, alone.save_state = path;
  alone.sample.temperature = 0, alone.max_tokens = 1, alone.ignore_eos = true, alone.speculate = false;
  read(std::move(alone));
  request.load_state = path;
}

}  // namespace

void use_prompt_files(const PromptFileFlags& f, const Model& model, bool first, Request& request,
                      const std::function<void(Request)>& read) {
  request.load_state = f.load_state, request.save_state = f.save_state;
  if (!f.save_prompt.empty() && first) read_and_save(f.save_prompt, request, read);
  if (f.cache.empty()) return;
  const std::vector<Token> prompt = known_as(request.soft, request.prompt);
  bool whole = false;
  if (std::filesystem::exists(f.cache)) {
    const SavedHead head = saved_head(f.cache);
    if (head.model != saved_identity(model))
      throw Error(fmt::format("'{}' belongs to another model: {}", f.cache, head.model),
                  "give another file to --prompt-cache, or remove this one");
    const std::vector<Token>& saved = head.tokens;
    if (begins(prompt, saved))
      request.load_state = f.cache, whole = saved.size() + 1 == prompt.size();
    else if (first)
      log_info("'{}' does not hold the beginning of this prompt: it is read", f.cache);
  }
  if (f.cache_read_only) return;
  if (f.cache_all)
    request.save_state = f.cache;
  else if (first && !whole)
    read_and_save(f.cache, request, read);
}

}  // namespace carat
