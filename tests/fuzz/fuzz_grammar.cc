// Any bytes as a JSON schema, a GBNF grammar or a regular expression (the first byte says which): an Error or
// a grammar, and a random walk through it that never dies and never costs too much.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/grammar/automaton.h"
#include "text/grammar/sources.h"

using namespace carat;

namespace {

std::shared_ptr<const Grammar> grammar_of(uint8_t kind, std::string_view text) {
  GrammarBuilder b;
  if (kind % 4 == 1) return b.build(gbnf_grammar(b, text));
  if (kind % 4 == 2) return b.build(regex_grammar(b, text, Spelling::json, true));
  int depth = 0;
  for (const char c : text) depth = std::max(depth + (c == '[' || c == '{'), depth);
  if (depth > 500) return nullptr;  // the server refuses such bodies before anybody reads them
  const Json schema = Json::parse(text, nullptr, false);
  if (schema.is_discarded()) return nullptr;
  return b.build(schema_grammar(b, schema, kind % 4 == 0 ? SchemaDialect::json : SchemaDialect::gemma_call));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  try {
    const auto grammar =
        grammar_of(data[0], std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
    if (!grammar) return 0;
    GrammarAutomaton a(grammar);
    GrammarAutomaton::Config c = a.start();
    uint32_t random = 1;
    for (size_t i = 0; i < 300 && !a.entries(c).empty(); ++i) {
      random = random * 1664525 + 1013904223 + data[i % size];
      const auto entry = a.entries(c)[(random >> 8) % a.entries(c).size()];
      const auto edges = grammar->edges_of(entry.state);
      const auto& edge = edges[(random >> 16) % edges.size()];
      c = a.step(c, grammar->class_of[edge.low]);
      if (c == GrammarAutomaton::kDead) std::abort();
    }
  } catch (const Error&) {}
  return 0;
}
