#include "tools/vocab.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "text/tokenizer/split.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
// Ours: llama.cpp's reader brings no text to a normal form, whatever the pre-tokenizer's name.
constexpr const char* kNfcKey = "tokenizer.carat.nfc";
constexpr size_t kMaxTokenizer = size_t{512} << 20, kMaxSmall = size_t{64} << 20;

// Ends of a turn by their text, for files that name only one of them (gemma4.md section 6).
constexpr std::string_view kTurnEnds[] = {"<eos>", "<turn|>", "<|tool_response>"};

// -1 if the file has none, and, with a warning, if it names one that is not there: converters write 2^32 - 1
// or the size of the vocabulary for "none".
Token token_key(const Metadata& meta, std::string_view name, size_t tokens) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const int64_t id = meta.get_int_or(key, -1);
  if (id >= 0 && id < static_cast<int64_t>(tokens)) return static_cast<Token>(id);
  if (id != -1) log_warn("'{}' is {}, which is no token: it is left out", key, id);
  return -1;
}

void read_types(const Metadata& meta, TokenizerData& data) {
  data.types.assign(data.tokens.size(), TokenType::normal);
  if (!meta.find("tokenizer.ggml.token_type")) return;
  const auto types = meta.get_ints_per_layer("tokenizer.ggml.token_type", data.tokens.size());
  size_t unknown = 0, first = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] >= 1 && types[i] <= 6)
      data.types[i] = static_cast<TokenType>(types[i]);
    else if (unknown++ == 0)
      first = i;
  }
  if (unknown)
    log_warn("{} tokens, {} first, are of an unknown type ({}): they count as normal", unknown, first,
             types[first]);
}

// Some exports write a list of one template.
std::string chat_template(const Metadata& meta) {
  const std::vector<std::string>* all = meta.find_strings("tokenizer.chat_template");
  if (!all) return meta.get_string_or("tokenizer.chat_template", "");
  return all->empty() ? std::string() : all->front();
}

// Gemma's models need BOS, though published files deny it.
bool needs_bos(const Metadata& meta) {
  return meta.get_string_or("general.architecture", "").starts_with("gemma4");
}

bool adds_bos(const Metadata& meta, const TokenizerData& data) {
  if (data.bos < 0) return false;
  if (needs_bos(meta)) return true;
  const PreTokenizer* pre = data.model == "gpt2" ? find_pre_tokenizer(data.pre) : nullptr;
  const bool otherwise = data.model == "gpt2" ? pre && pre->add_bos : true;
  return meta.get_bool_or("tokenizer.ggml.add_bos_token", otherwise);
}

// A pre-tokenizer by name, but for the normal form of the text before it.
void read_normal_form(const Metadata& meta, TokenizerData& data) {
  const PreTokenizer* pre = data.model == "gpt2" ? find_pre_tokenizer(data.pre) : nullptr;
  if (!pre || !meta.find(kNfcKey)) return;
  data.split_pattern = pre->pattern;
  data.then_split.assign(pre->then.begin(), pre->then.end());
  data.ignore_merges = pre->ignore_merges;
  data.nfc = meta.get_bool_or(kNfcKey, pre->nfc);
}

void add_end(TokenizerData& data, Token id) {
  auto& ends = data.end_of_generation;
  if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
}

TokenizerData from_metadata(const Metadata& meta) {
  TokenizerData data;
  data.model = meta.get_string("tokenizer.ggml.model");
  data.pre = meta.get_string_or("tokenizer.ggml.pre", "");
  data.tokens = *meta.find_strings("tokenizer.ggml.tokens");
  read_types(meta, data);
  if (const MetaValue* v = meta.find("tokenizer.ggml.scores")) {
    const auto* scores = std::get_if<std::vector<double>>(v);
    if (!scores || scores->size() != data.tokens.size()) {
      throw Error("'tokenizer.ggml.scores' is not one number per token");
    }
    data.scores.assign(scores->begin(), scores->end());
  }
  if (const auto* merges = meta.find_strings("tokenizer.ggml.merges")) data.merges = *merges;
  const auto special = [&](std::string_view name) { return token_key(meta, name, data.tokens.size()); };
  data.bos = special("bos");
  data.eos = special("eos");
  data.unk = special("unknown");
  data.pad = special("padding");
  data.mask = special("mask");
  data.add_bos = adds_bos(meta, data);
  data.add_eos = meta.get_bool_or("tokenizer.ggml.add_eos_token", false);
  data.add_space_prefix = meta.get_bool_or("tokenizer.ggml.add_space_prefix", false);
  data.chat_template = chat_template(meta);
  read_normal_form(meta, data);
  add_end(data, data.eos);
  add_end(data, special("eot"));
  add_end(data, special("eom"));
  if (const MetaValue* v = meta.find("tokenizer.ggml.eos_token_ids"))
    if (const auto* ids = std::get_if<std::vector<int64_t>>(v))
      for (const int64_t id : *ids)
        if (id < static_cast<int64_t>(data.tokens.size()))
          add_end(data, static_cast<Token>(std::max<int64_t>(id, -1)));
  if (data.model == "gemma4" || data.pre == "gemma4") {
    for (size_t i = 0; i < data.tokens.size(); ++i)
      for (const std::string_view end : kTurnEnds)
        if (data.tokens[i] == end) add_end(data, static_cast<Token>(i));
  }
  return data;
}

std::string read_if_there(const fs::path& path, size_t max) {
  std::error_code ec;
  return fs::exists(path, ec) ? read_file(path.string(), max) : std::string();
}

TokenizerData from_directory(const fs::path& dir) {
  TokenizerData data = read_tokenizer_json(read_file((dir / "tokenizer.json").string(), kMaxTokenizer),
                                           read_if_there(dir / "tokenizer_config.json", kMaxSmall),
                                           read_if_there(dir / "generation_config.json", kMaxSmall));
  if (const std::string text = read_if_there(dir / "chat_template.jinja", kMaxSmall); !text.empty()) {
    data.chat_template = text;
  } else if (const std::string json = read_if_there(dir / "chat_template.json", kMaxSmall); !json.empty()) {
    const auto doc = nlohmann::json::parse(json, nullptr, false);
    if (!doc.is_object() || !doc.contains("chat_template") || !doc["chat_template"].is_string()) {
      throw Error(fmt::format("'{}' holds no 'chat_template' text", (dir / "chat_template.json").string()));
    }
    data.chat_template = doc["chat_template"].get<std::string>();
  }
  return data;
}

bool is_directory_with_tokenizer(const WeightSource& source) {
  std::error_code ec;
  return fs::exists(fs::path(source.path()) / "tokenizer.json", ec);
}

}  // namespace

bool has_tokenizer(const WeightSource& source) {
  return source.meta().find_strings("tokenizer.ggml.tokens") || is_directory_with_tokenizer(source);
}

TokenizerData tokenizer_from_source(const WeightSource& source) {
  if (source.meta().find_strings("tokenizer.ggml.tokens")) return from_metadata(source.meta());
  if (is_directory_with_tokenizer(source)) {
    TokenizerData data = from_directory(source.path());
    if (needs_bos(source.meta())) data.add_bos = data.bos >= 0;
    return data;
  }
  throw Error(fmt::format("'{}' has no tokenizer", source.path()),
              "a GGUF file carries it in its metadata, a directory in tokenizer.json");
}

namespace {

// The name that GGUF has for how the text is cut; only its normal form may differ from what the name says.
std::string pre_tokenizer_of(const TokenizerData& data, Metadata& meta) {
  if (data.model != "gpt2" || data.split_pattern.empty() || !data.pre.empty()) return data.pre;
  const std::string name = pre_tokenizer_name(data.split_pattern, !data.nfc, data.ignore_merges);
  if (name.empty())
    throw Error("this tokenizer cuts texts in a way that GGUF has no name for",
                "other readers of the file would make other tokens; use the directory itself, or a tokenizer "
                "that cuts like one of: " +
                    pre_tokenizer_names());
  meta.set(kNfcKey, data.nfc);
  return name;
}

// Readers know two ends beside eos by keys; some read a list of all.
void set_ends(const TokenizerData& data, Metadata& meta) {
  std::vector<int64_t> all;
  for (const Token id : data.end_of_generation)
    if (id != data.eos) all.push_back(id);
  const char* const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  for (size_t i = 0; i < std::min(all.size(), std::size(keys)); ++i) meta.set(keys[i], all[i]);
  if (data.eos >= 0) all.insert(all.begin(), data.eos);
  if (all.size() > 1) meta.set("tokenizer.ggml.eos_token_ids", all);
}

}  // namespace

void tokenizer_to_metadata(const TokenizerData& data, Metadata& meta) {
  const auto set = [&](std::string_view key, MetaValue value) {
    meta.set(fmt::format("tokenizer.ggml.{}", key), std::move(value));
  };
  set("model", data.model);
  if (const std::string pre = pre_tokenizer_of(data, meta); !pre.empty()) set("pre", pre);
  set("tokens", data.tokens);
  std::vector<int64_t> types;
  for (const TokenType t : data.types) types.push_back(static_cast<int64_t>(t));
  set("token_type", types);
  if (!data.scores.empty()) set("scores", std::vector<double>(data.scores.begin(), data.scores.end()));
  if (!data.merges.empty()) set("merges", data.merges);
  const auto set_id = [&](std::string_view key, Token id) {
    if (id >= 0) set(fmt::format("{}_token_id", key), int64_t{id});
  };
  set_id("bos", data.bos);
  set_id("eos", data.eos);
  set_id("unknown", data.unk);
  set_id("padding", data.pad);
  set_id("mask", data.mask);
  set_ends(data, meta);
  set("add_bos_token", data.add_bos);
  set("add_eos_token", data.add_eos);
  set("add_space_prefix", data.add_space_prefix);
  if (!data.chat_template.empty()) meta.set("tokenizer.chat_template", data.chat_template);
}

void fit_vocabulary(Metadata& meta, int64_t rows) {
  const std::vector<std::string>* found = meta.find_strings("tokenizer.ggml.tokens");
  if (!found) return;
  std::vector<std::string> tokens = *found;
  const auto n = static_cast<size_t>(rows);
  std::vector<int64_t> types(tokens.size(), static_cast<int64_t>(TokenType::normal));
  if (meta.find("tokenizer.ggml.token_type"))
    types = meta.get_ints_per_layer("tokenizer.ggml.token_type", tokens.size());
  if (tokens.size() > n)
    throw Error(fmt::format("the tokenizer has {} tokens, the table {} rows", tokens.size(), rows),
                "tokenizer and weights are of different models");
  const size_t before = tokens.size();
  std::set<std::string_view> names;
  const auto filler = [&](size_t id) {
    std::string name = fmt::format("[PAD{}]", id);
    while (names.contains(name)) name += '_';
    return name;
  };
  for (const std::string& t : *found) names.insert(t);
  bool gaps = false;
  for (size_t id = 0; id < before; ++id) {
    if (!tokens[id].empty()) continue;
    tokens[id] = filler(id), types[id] = static_cast<int64_t>(TokenType::unused), gaps = true;
  }
  if (before == n && !gaps) return;
  for (size_t id = before; id < n; ++id) tokens.push_back(filler(id));
  types.resize(n, static_cast<int64_t>(TokenType::unused));
  if (const MetaValue* v = meta.find("tokenizer.ggml.scores"))
    if (const auto* scores = std::get_if<std::vector<double>>(v)) {
      std::vector<double> all = *scores;
      all.resize(n, -10000.0);
      meta.set("tokenizer.ggml.scores", std::move(all));
    }
  meta.set("tokenizer.ggml.tokens", std::move(tokens));
  meta.set("tokenizer.ggml.token_type", std::move(types));
}

}  // namespace carat
