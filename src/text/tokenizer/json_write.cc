// tokenizer.json of a Gemma vocabulary, as Hugging Face's tokenizers read it.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;

Json added_token(Token id, const std::string& text, bool special) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// BOS before a text, where the vocabulary wants it.
Json post_processor(const TokenizerData& d) {
  if (!d.add_bos || d.bos < 0) return nullptr;
  const std::string& bos = d.tokens[static_cast<size_t>(d.bos)];
  const Json mark = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto text = [](const char* which, int type) {
    return Json{{"Sequence", {{"id", which}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", {mark, text("A", 0)}},
          {"pair", {mark, text("A", 0), mark, text("B", 1)}},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {d.bos}}, {"tokens", {bos}}}}}}};
}

}  // namespace

std::string write_tokenizer_json(const TokenizerData& d) {
  if (d.model != "gemma4" || d.merges.empty())
    throw Error(fmt::format("a vocabulary of the kind '{}' is not written as tokenizer.json", d.model),
                "give the model's Hugging Face directory");
  Json added = Json::array(), vocab = Json::object(), merges = Json::array();
  for (size_t id = 0; id < d.tokens.size(); ++id) {
    const TokenType type = d.types[id];
    const bool special = type == TokenType::control || type == TokenType::unknown;
    if (special || type == TokenType::user_defined)
      added.push_back(added_token(static_cast<Token>(id), d.tokens[id], special));
    vocab.emplace(d.tokens[id], id);
  }
  for (const std::string& m : d.merges) {
    const size_t space = m.find(' ', 1);
    merges.push_back({m.substr(0, space), space == m.npos ? "" : m.substr(space + 1)});
  }
  const Json unk = d.unk >= 0 ? Json(d.tokens[static_cast<size_t>(d.unk)]) : Json();
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", replace(" ", "\u2581")},
              {"pre_tokenizer",
               {{"type", "Split"},
                {"pattern", {{"String", " "}}},
                {"behavior", "MergedWithPrevious"},
                {"invert", false}}},
              {"post_processor", post_processor(d)},
              {"decoder",
               {{"type", "Sequence"},
                {"decoders", {replace("\u2581", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", unk},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", d.fuse_unk},
                {"byte_fallback", true},
                {"ignore_merges", d.ignore_merges},
                {"vocab", vocab},
                {"merges", merges}}}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace carat
