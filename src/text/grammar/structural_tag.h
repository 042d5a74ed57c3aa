// Structural tags as xgrammar describes them and vLLM takes them: {"format": ...}, a format, or the older
// {"structures": [...], "triggers": [...]}.
#pragma once
#include "text/grammar/sources.h"

namespace carat {

// Error naming what cannot be kept.
GrammarBuilder::Expr structural_tag_grammar(GrammarBuilder& b, const Json& tag);

}  // namespace carat
