#include "text/tokenizer/fim.h"

namespace carat {
namespace {

Token first_of(const Tokenizer& tokenizer, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const Token t = tokenizer.find(name); t >= 0) return t;
  return -1;
}

}  // namespace

FimTokens fim_tokens(const Tokenizer& tokenizer) {
  FimTokens t;
  t.prefix = first_of(tokenizer, {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>"});
  t.suffix = first_of(tokenizer, {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>"});
  t.middle = first_of(tokenizer, {"<|fim_middle|>", "<fim-middle>", "<fim_middle>"});
  t.repository = first_of(tokenizer, {"<|repo_name|>", "<fim-repo>", "<reponame>"});
  t.file = first_of(tokenizer, {"<|file_sep|>", "<fim-file>", "<file_sep>"});
  const Token pad = first_of(tokenizer, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>"});
  for (const Token end : {t.prefix, t.suffix, t.middle, t.repository, t.file, pad})
    if (end >= 0) t.ends.push_back(end);
  return t;
}

std::vector<Token> fim_prompt(const Tokenizer& tokenizer, const FimTokens& tokens, const Gap& gap) {
  std::vector<Token> out;
  const auto text = [&](const std::string& s) {
    const std::vector<Token> more = tokenizer.encode(s, false);
    out.insert(out.end(), more.begin(), more.end());
  };
  if (tokens.repository >= 0 && tokens.file >= 0) {
    // The repository-level pattern of arXiv:2409.12186.
    out.push_back(tokens.repository);
    text("myproject\n");
    for (const Gap::File& f : gap.others) {
      out.push_back(tokens.file);
      text(f.name + "\n" + f.text);
    }
    out.push_back(tokens.file);
    text("filename\n");
  } else {
    for (const Gap::File& f : gap.others) text(f.text);
  }
  out.push_back(tokens.prefix);
  text(gap.before);
  out.push_back(tokens.suffix);
  text(gap.after);
  out.push_back(tokens.middle);
  text(gap.begun);
  return out;
}

}  // namespace carat
