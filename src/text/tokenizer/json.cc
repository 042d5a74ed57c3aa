// Hugging Face's tokenizer.json and its two companions. Only what changes tokens is read; a component that we
// do not know is an error that names it, never ignored.
#include <nlohmann/json.hpp>

#include <map>
#include <set>

#include "base/error.h"
#include "base/file_kind.h"
#include "text/tokenizer/split.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

using nlohmann::json;
constexpr Token kMaxTokens = 1 << 22;
constexpr const char* kHint =
    "Carat reads the tokenizers of Gemma (BPE with byte fallback) and of Qwen (byte-level BPE).";

// nlohmann's own functions recurse into what they copy: bound the nesting before there is a document.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > 64) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

json parse(std::string_view text, const char* file) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return json::object();
  require_json_text(text, file);
  json j = too_deep(text) ? json(json::value_t::discarded) : json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object()) {
    throw Error(fmt::format("{} is not a JSON object of the known form", file),
                "Take the file from the publisher again.");
  }
  return j;
}

[[noreturn]] void unknown(const char* part, const json& j) {
  const auto type = j.is_object() ? j.find("type") : j.end();
  const std::string name = j.is_string()                                           ? j.get<std::string>()
                           : j.is_object() && type != j.end() && type->is_string() ? type->get<std::string>()
                                                                                   : j.type_name();
  throw Error(fmt::format("tokenizer.json: {} \"{:.80}\" is not supported in this form", part, name), kHint);
}

const json& member(const json& j, const char* key) {
  static const json none;
  if (!j.is_object()) return none;
  const auto it = j.find(key);
  return it == j.end() ? none : *it;
}

std::string text_of(const json& j, const char* key) {
  const json& v = member(j, key);
  return v.is_string() ? v.get<std::string>() : std::string();
}

bool flag(const json& j, const char* key, bool otherwise) {
  const json& v = member(j, key);
  return v.is_boolean() ? v.get<bool>() : otherwise;
}

Token token_id(const json& j, const char* what) {
  if (!j.is_number_integer() || j.get<int64_t>() < 0 || j.get<int64_t>() >= kMaxTokens) {
    throw Error(fmt::format("tokenizer.json: {} has no valid id", what),
                "Take the file from the publisher again.");
  }
  return static_cast<Token>(j.get<int64_t>());
}

// A component, or the parts of a Sequence of them; null: none.
std::vector<json> components(const json& j, const char* list) {
  if (j.is_null()) return {};
  if (text_of(j, "type") != "Sequence") return {j};
  const json& parts = member(j, list);
  if (!parts.is_array()) unknown("Sequence", j);
  return {parts.begin(), parts.end()};
}

bool is_replace(const json& j, const char* from, const char* to) {
  return text_of(j, "type") == "Replace" && text_of(member(j, "pattern"), "String") == from &&
         text_of(j, "content") == to;
}

struct Form {
  bool spaces = false;  // normalizer writes U+2581 for a space
  bool nfc = false;
  bool byte_level = false;
  std::string pattern;
};

void read_normalizer(const json& j, Form& form) {
  for (const json& part : components(j, "normalizers")) {
    if (is_replace(part, " ", "\u2581")) {
      form.spaces = true;
    } else if (text_of(part, "type") == "NFC") {
      form.nfc = true;
    } else {
      unknown("normalizer", part);
    }
  }
}

void read_pre_tokenizer(const json& j, Form& form) {
  for (const json& part : components(j, "pretokenizers")) {
    const std::string type = text_of(part, "type");
    const json& pattern = member(part, "pattern");
    if (type == "ByteLevel" && !flag(part, "add_prefix_space", true)) {
      form.byte_level = true;
      if (flag(part, "use_regex", true)) {
        if (!form.pattern.empty()) unknown("pre_tokenizer with two patterns", j);
        form.pattern = kGpt2Pattern;
      }
    } else if (type == "Split" && text_of(pattern, "String") == " " && form.spaces) {
      continue;  // no space is left after the normalizer
    } else if (type == "Split" && !text_of(pattern, "Regex").empty() &&
               text_of(part, "behavior") == "Isolated" && !flag(part, "invert", false) &&
               form.pattern.empty() && !form.byte_level) {
      form.pattern = text_of(pattern, "Regex");
    } else {
      unknown("pre_tokenizer", part);
    }
  }
}

void read_decoder(const json& j, const Form& form) {
  for (const json& part : components(j, "decoders")) {
    const std::string type = text_of(part, "type");
    const bool known = form.byte_level
                           ? type == "ByteLevel"
                           : type == "ByteFallback" || type == "Fuse" || is_replace(part, "\u2581", " ");
    if (!known) unknown("decoder", part);
  }
}

void put_token(TokenizerData& d, Token id, std::string text, TokenType type) {
  const auto at = static_cast<size_t>(id);
  if (at >= d.tokens.size()) {
    d.tokens.resize(at + 1);
    d.types.resize(at + 1, TokenType::unused);
  }
  d.tokens[at] = std::move(text);
  d.types[at] = type;
}

void read_model(const json& model, TokenizerData& d) {
  const std::string type = text_of(model, "type");
  if (!type.empty() && type != "BPE") unknown("model type", member(model, "type"));
  const json& dropout = member(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) unknown("model with dropout", dropout);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(model, key).empty()) unknown(key, member(model, key));
  }
  const json &vocab = member(model, "vocab"), &merges = member(model, "merges");
  if (!vocab.is_object() || vocab.empty() || !merges.is_array()) {
    throw Error("tokenizer.json has no model.vocab or no model.merges", kHint);
  }
  for (const auto& [text, id] : vocab.items()) put_token(d, token_id(id, "a token"), text, TokenType::normal);
  d.merges.reserve(merges.size());
  for (const json& m : merges) {
    if (m.is_string()) {
      d.merges.push_back(m.get<std::string>());
    } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      d.merges.push_back(m[0].get_ref<const std::string&>() + ' ' + m[1].get_ref<const std::string&>());
    } else {
      throw Error("tokenizer.json: a merge is neither \"a b\" nor [\"a\", \"b\"]",
                  "Take the file from the publisher again.");
    }
  }
  d.ignore_merges = flag(model, "ignore_merges", false);
  d.fuse_unk = flag(model, "fuse_unk", false);
}

void read_added_tokens(const json& added, TokenizerData& d) {
  if (!added.is_array()) return;
  for (const json& t : added) {
    const std::string text = text_of(t, "content");
    const bool special = flag(t, "special", false);
    AddedTokenRule rule;
    rule.id = token_id(member(t, "id"), "an added token");
    rule.lstrip = flag(t, "lstrip", false);
    rule.rstrip = flag(t, "rstrip", false);
    rule.single_word = flag(t, "single_word", false);
    rule.normalized = flag(t, "normalized", !special);
    put_token(d, rule.id, text, special ? TokenType::control : TokenType::user_defined);
    if (rule.lstrip || rule.rstrip || rule.single_word || rule.normalized) d.added_rules.push_back(rule);
  }
}

class Names {
 public:
  explicit Names(const TokenizerData& d) {
    for (size_t i = 0; i < d.tokens.size(); ++i) id_[d.tokens[i]] = static_cast<Token>(i);
  }
  // A token named by its text, or by an object with "content"; -1 if absent or not in the vocabulary.
  Token find(const json& j) const {
    const std::string text = j.is_string() ? j.get<std::string>() : text_of(j, "content");
    const auto it = text.empty() ? id_.end() : id_.find(text);
    return it == id_.end() ? -1 : it->second;
  }

 private:
  std::map<std::string_view, Token> id_;
};

// Whether the post-processor puts the token in front of a single text.
bool adds_in_front(const json& post, const std::string& bos) {
  for (const json& part : components(post, "processors")) {
    const json& single = member(part, "single");
    if (single.is_array() && !single.empty() && text_of(member(single[0], "SpecialToken"), "id") == bos &&
        !bos.empty())
      return true;
  }
  return false;
}

std::string chat_template(const json& j) {
  if (j.is_string()) return j.get<std::string>();
  std::string first;
  if (!j.is_array()) return first;
  for (const json& named : j) {
    const std::string text = text_of(named, "template");
    if (text_of(named, "name") == "default") return text;
    if (first.empty()) first = text;
  }
  return first;
}

void read_config(const json& root, const json& config, const json& generation, TokenizerData& d) {
  const Names names(d);
  const auto named = [&](const char* key, Token otherwise) {
    const Token id = names.find(member(config, key));
    return id >= 0 ? id : otherwise;
  };
  std::vector<Token> ends;
  const json& eos = member(generation, "eos_token_id");
  for (const json& id : eos.is_array() ? eos.get<std::vector<json>>() : std::vector<json>{eos}) {
    if (!id.is_number_integer()) continue;
    const auto value = id.get<int64_t>();
    if (value >= 0 && value < static_cast<int64_t>(d.tokens.size()))
      ends.push_back(static_cast<Token>(value));
  }
  d.bos = named("bos_token", names.find("<bos>"));
  d.eos = named("eos_token", ends.empty() ? names.find("<eos>") : ends[0]);
  d.unk = named("unk_token", names.find(member(member(root, "model"), "unk_token")));
  d.pad = named("pad_token", -1);
  d.mask = named("mask_token", -1);
  if (d.eos >= 0) d.end_of_generation.push_back(d.eos);
  for (const Token id : ends) {
    if (id != d.eos) d.end_of_generation.push_back(id);
  }
  if (d.unk >= 0) d.types[d.unk] = TokenType::unknown;
  const bool in_front = d.bos >= 0 && adds_in_front(member(root, "post_processor"), d.tokens[d.bos]);
  d.add_bos = flag(config, "add_bos_token", in_front);
  d.add_eos = flag(config, "add_eos_token", false);
  d.chat_template = chat_template(member(config, "chat_template"));
}

}  // namespace

TokenizerData read_tokenizer_json(std::string_view tokenizer_json, std::string_view tokenizer_config,
                                  std::string_view generation_config) {
  const json root = parse(tokenizer_json, "tokenizer.json");
  Form form;
  read_normalizer(member(root, "normalizer"), form);
  read_pre_tokenizer(member(root, "pre_tokenizer"), form);
  read_decoder(member(root, "decoder"), form);
  if (form.byte_level == form.spaces || (!form.byte_level && (form.nfc || !form.pattern.empty()))) {
    throw Error("tokenizer.json: this combination of normalizer and pre_tokenizer is not supported", kHint);
  }
  TokenizerData d;
  d.model = form.byte_level ? "gpt2" : "gemma4";
  d.pre = "gemma4";
  d.nfc = form.nfc;
  read_model(member(root, "model"), d);
  if (form.byte_level) {
    d.split_pattern = form.pattern.empty() ? "(?!)" : form.pattern;  // no pattern: one that never matches
    d.pre = pre_tokenizer_name(d.split_pattern, d.nfc, d.ignore_merges);
  }
  read_added_tokens(member(root, "added_tokens"), d);
  read_config(root, parse(tokenizer_config, "tokenizer_config.json"),
              parse(generation_config, "generation_config.json"), d);
  return d;
}

}  // namespace carat
