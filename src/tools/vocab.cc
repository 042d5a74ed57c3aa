#include "tools/vocab.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxTokenizer = size_t{512} << 20, kMaxSmall = size_t{64} << 20;

// Ends of a turn by their text, for files that name only one of them (gemma4.md section 6).
constexpr std::string_view kTurnEnds[] = {"<eos>", "<turn|>", "<|tool_response>"};

Token token_key(const Metadata& meta, std::string_view name) {
  const int64_t id = meta.get_int_or(fmt::format("tokenizer.ggml.{}_token_id", name), -1);
  if (id < -1 || id > std::numeric_limits<Token>::max()) {
    throw Error(fmt::format("'tokenizer.ggml.{}_token_id' is {}, which is no token", name, id));
  }
  return static_cast<Token>(id);
}

void read_types(const Metadata& meta, TokenizerData& data) {
  data.types.assign(data.tokens.size(), TokenType::normal);
  if (!meta.find("tokenizer.ggml.token_type")) return;
  const auto types = meta.get_ints_per_layer("tokenizer.ggml.token_type", data.tokens.size());
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] < 1 || types[i] > 6)
      throw Error(fmt::format("token {} is of the unknown type {}", i, types[i]));
    data.types[i] = static_cast<TokenType>(types[i]);
  }
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
  data.bos = token_key(meta, "bos");
  data.eos = token_key(meta, "eos");
  data.unk = token_key(meta, "unknown");
  data.pad = token_key(meta, "padding");
  data.mask = token_key(meta, "mask");
  data.add_bos = meta.get_bool_or("tokenizer.ggml.add_bos_token", data.bos >= 0);
  data.add_eos = meta.get_bool_or("tokenizer.ggml.add_eos_token", false);
  data.add_space_prefix = meta.get_bool_or("tokenizer.ggml.add_space_prefix", false);
  data.chat_template = meta.get_string_or("tokenizer.chat_template", "");
  add_end(data, data.eos);
  add_end(data, token_key(meta, "eot"));
  add_end(data, token_key(meta, "eom"));
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
  if (is_directory_with_tokenizer(source)) return from_directory(source.path());
  throw Error(fmt::format("'{}' has no tokenizer", source.path()),
              "a GGUF file carries it in its metadata, a directory in tokenizer.json");
}

void tokenizer_to_metadata(const TokenizerData& data, Metadata& meta) {
  const auto set = [&](std::string_view key, MetaValue value) {
    meta.set(fmt::format("tokenizer.ggml.{}", key), std::move(value));
  };
  set("model", data.model);
  if (!data.pre.empty()) set("pre", data.pre);
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
  for (const Token id : data.end_of_generation) {  // one more end fits; the rest are known by their text
    if (id == data.eos) continue;
    set_id("eot", id);
    break;
  }
  set("add_bos_token", data.add_bos);
  set("add_eos_token", data.add_eos);
  set("add_space_prefix", data.add_space_prefix);
  if (!data.chat_template.empty()) meta.set("tokenizer.chat_template", data.chat_template);
}

}  // namespace carat
