// A grammar (as in fuzz_grammar: the first byte says which kind) over a small vocabulary: masks are exactly
// the tokens that go on, a mask costs no more than its budget, and an answer that follows masks never gets
// stuck.
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/error.h"
#include "text/grammar/matcher.h"
#include "text/grammar/sources.h"
#include "tools/forge_vocab.h"

using namespace carat;

namespace {

constexpr double kMostSeconds = 2;  // of the processor, for one mask, under sanitizers

const Tokenizer& tokenizer() {
  static const Tokenizer t(forge_vocabulary(2048));
  return t;
}

std::shared_ptr<const Grammar> grammar_of(uint8_t kind, std::string_view text) {
  GrammarBuilder b(&tokenizer());
  if (kind % 4 == 1) return b.build(gbnf_grammar(b, text));
  if (kind % 4 == 2) return b.build(regex_grammar(b, text, Spelling::plain, false));
  int depth = 0;
  for (const char c : text) depth = std::max(depth + (c == '[' || c == '{'), depth);
  if (depth > 100) return nullptr;
  const Json schema = Json::parse(text, nullptr, false);
  if (schema.is_discarded()) return nullptr;
  return b.build(schema_grammar(b, schema, kind % 4 == 0 ? SchemaDialect::json : SchemaDialect::gemma_call));
}

bool has(std::span<const uint64_t> mask, Token t) {
  return mask[static_cast<size_t>(t) / 64] >> (static_cast<size_t>(t) % 64) & 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  static const auto trie = std::make_shared<const TokenTrie>(tokenizer());
  try {
    const auto grammar =
        grammar_of(data[0], std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
    if (!grammar) return 0;
    GrammarMatcher m(std::make_shared<TokenGrammar>(grammar, trie));
    GrammarMatcher::State s = m.start();
    uint32_t random = 1;
    for (size_t i = 0; i < 12; ++i) {
      const std::clock_t began = std::clock();
      const std::span<const uint64_t> mask = m.allowed(s);
      if (std::clock() - began > kMostSeconds * CLOCKS_PER_SEC) std::abort();
      const std::vector<uint64_t> now(mask.begin(), mask.end());
      std::vector<Token> open;
      for (Token t = 0; t < tokenizer().size(); ++t)
        if (has(now, t)) open.push_back(t);
      if (open.empty()) std::abort();
      random = random * 1664525 + 1013904223 + data[i % size];
      // A token that is allowed goes on, one that is not does not.
      const Token other = static_cast<Token>((random >> 4) % static_cast<uint32_t>(tokenizer().size()));
      if (has(now, other) != (m.advance(s, other) != GrammarMatcher::kNowhere)) std::abort();
      const Token t = open[(random >> 8) % open.size()];
      s = m.advance(s, t);
      if (s == GrammarMatcher::kNowhere) std::abort();
      m.forced_tokens(s, 16);
      if (tokenizer().is_end(t)) break;
    }
  } catch (const Error&) {}
  return 0;
}
