// Command lines written for llama.cpp: its flags under our names, those that change nothing here left out,
// those that cannot work refused with what to use instead. tests/data/llama_server_flags.txt lists
// llama-server's flags; the table in docs/operations.md is made from both (tests/llama_flags_test.cc).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carat {

// Wrong usage: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void refuse_flag(const std::string& typed, const std::string& instead);

enum class LlamaUse { ours, renamed, ignored, refused };

struct LlamaFlag {
  const char* names;  // "-fa,--flash-attn"
  LlamaUse use;       // ours: only a one-dash name of several letters for our flag `to`
  int values;         // how many follow it; kOptional: one of on, off, auto, if there is one
  const char* to;     // our flag, or why it changes nothing, or what to use instead
};
constexpr int kOptional = -1;

// Null if llama.cpp has no such flag or ours is the same.
const LlamaFlag* find_llama_flag(std::string_view name);

struct Translated {
  std::vector<std::string> args;
  std::vector<std::string> ignored;  // as they were typed, with their values
  std::vector<std::string> changed;  // "-mg 1 as --device cuda:1": where an error would name ours alone
};
// args: what stands behind the command. own: whether the command has a flag of that name itself, which then
// wins. UsageError if a flag cannot work here.
Translated translate_llama_flags(const std::vector<std::string>& args,
                                 const std::function<bool(std::string_view)>& own);

// UsageError for a one-dash flag of several letters that is neither ours nor llama.cpp's and would be read as
// a short flag with its value: -st as `-s t`. has_value: whether a flag takes the argument behind it, nothing
// if there is no such flag.
void refuse_clusters(const std::vector<std::string>& args,
                     const std::function<std::optional<bool>(std::string_view)>& has_value);

}  // namespace carat
