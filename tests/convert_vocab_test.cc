// What a converted file says of its tokenizer, its ends and its sampling: as the directory, in keys that
// other readers know. And what files say a little off: read as it was meant.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/files/gguf_writer.h"
#include "model/model.h"
#include "tests/tiny_model.h"
#include "text/tokenizer/unicode.h"
#include "tools/convert.h"
#include "tools/vocab.h"

using namespace carat;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kSplit = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                               R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// 256 bytes, three merges, fillers up to `rows`, the last four of them special.
json byte_level(size_t rows, const json& normalizer, const std::string& pattern = kSplit) {
  json vocab = json::object();
  size_t n = 0, next = 256;
  for (size_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    std::string text;
    append_utf8(text, static_cast<char32_t>(printable ? b : next++));
    vocab[text] = n++;
  }
  for (const char* merged : {"11", "12", "he"}) vocab[merged] = n++;
  for (; n + 4 < rows; ++n) vocab[fmt::format("[X{}]", n)] = n;
  json added = json::array();
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"})
    added.push_back({{"id", n++}, {"content", special}, {"special", true}, {"normalized", false}});
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"normalizer", normalizer},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, level}}}},
          {"decoder", level},
          {"added_tokens", added},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"1 1", "1 2", "h e"}}}}};
}

void write(const std::string& path, const std::string& text) {
  AtomicFile f(path);
  f.write(text);
  f.commit();
}

// A directory with the weights of a golden model (512 rows) and this tokenizer.
std::string directory(const json& tokenizer, const json& generation = {},
                      std::string_view weights = "qwen3_5") {
  const std::string dir = fmt::format("{}/vocab", test_directory());
  fs::remove_all(dir);
  fs::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(fmt::format("{}/goldens/{}/{}", CARAT_TEST_DATA, weights, file),
                  fmt::format("{}/{}", dir, file));
  write(dir + "/tokenizer.json", tokenizer.dump());
  write(dir + "/tokenizer_config.json", R"({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})");
  if (generation.is_object()) write(dir + "/generation_config.json", generation.dump());
  return dir;
}

std::unique_ptr<WeightSource> converted(const std::string& in, std::string_view name = "vocab") {
  const std::string out = fmt::format("{}/{}.gguf", test_directory(), name);
  convert({.in = in, .out = out, .type = "f16", .threads = 1});
  return open_source(out);
}

// The same file with other metadata; `keep` says which tensors stay.
std::string rewritten(const WeightSource& source, const std::function<void(Metadata&)>& change,
                      const std::vector<std::string>& drop = {}, std::string_view name = "changed",
                      const std::function<bool(const std::string&)>& keep = {}) {
  Metadata meta;
  for (const auto& [key, value] : source.meta().all())
    if (std::find(drop.begin(), drop.end(), key) == drop.end()) meta.set(key, value);
  change(meta);
  std::vector<GgufTensor> tensors;
  for (const TensorInfo& t : source.tensors())
    if (!keep || keep(t.name)) tensors.push_back({t.name, t.type, t.shape});
  const std::string path = fmt::format("{}/{}.gguf", test_directory(), name);
  GgufWriter w(path, meta, tensors);
  for (const TensorInfo& t : source.tensors())
    if (!keep || keep(t.name)) w.write(t.data, t.bytes);
  w.finish();
  return path;
}

std::vector<int64_t> ints(const WeightSource& s, std::string_view key) {
  const MetaValue* v = s.meta().find(key);
  return v && std::holds_alternative<std::vector<int64_t>>(*v) ? std::get<std::vector<int64_t>>(*v)
                                                               : std::vector<int64_t>();
}

Tokenizer tokenizer(const WeightSource& s) { return Tokenizer(tokenizer_from_source(s)); }
const json kNfc = {{"type", "NFC"}};

}  // namespace

TEST_CASE("a vocabulary shorter than its table gets unused tokens, which have no text") {
  const std::string dir = directory(byte_level(300, kNfc));
  const auto file = converted(dir);
  const auto& tokens = *file->meta().find_strings("tokenizer.ggml.tokens");
  const std::vector<int64_t> types = ints(*file, "tokenizer.ggml.token_type");
  REQUIRE(tokens.size() == 512);
  REQUIRE(types.size() == 512);
  CHECK(tokens[300] == "[PAD300]");
  CHECK(std::all_of(types.begin() + 300, types.end(), [](int64_t t) { return t == 5; }));
  CHECK(std::none_of(types.begin(), types.begin() + 300, [](int64_t t) { return t == 5; }));
  const Tokenizer a = tokenizer(*open_source(dir)), b = tokenizer(*file);
  for (const char* text : {"he said 12112 [PAD300] <|im_end|>", "[PAD300]"}) {
    CHECK(a.encode(text, true) == b.encode(text, true));
    CHECK(a.encode(text, false) == b.encode(text, false));
  }
  CHECK(b.piece(300).empty());
  CHECK(b.piece(299) == "<think>");
  // A GGUF file whose vocabulary is short gets them, too; a gap inside is filled.
  const std::string gap = rewritten(*file, [&](Metadata& meta) {
    std::vector<std::string> less(tokens.begin(), tokens.begin() + 300);
    less[280].clear();
    meta.set("tokenizer.ggml.tokens", less);
    meta.set("tokenizer.ggml.token_type", std::vector<int64_t>(types.begin(), types.begin() + 300));
  });
  const auto again = converted(gap, "filled");
  CHECK(again->meta().find_strings("tokenizer.ggml.tokens")->size() == 512);
  CHECK(again->meta().find_strings("tokenizer.ggml.tokens")->at(280) == "[PAD280]");
  CHECK(ints(*again, "tokenizer.ggml.token_type")[280] == 5);
}

TEST_CASE("a converted file cuts texts as its directory does, or there is none") {
  for (const json& normalizer : {kNfc, json()}) {
    CAPTURE(normalizer.dump());
    const std::string dir = directory(byte_level(512, normalizer));
    const auto file = converted(dir);
    CHECK(file->meta().get_string("tokenizer.ggml.pre") == "qwen35");
    CHECK((file->meta().find("tokenizer.carat.nfc") != nullptr) == normalizer.is_null());
    const Tokenizer a = tokenizer(*open_source(dir)), b = tokenizer(*file);
    for (const char* text :
         {"12112", "e\u0301 the 110", "x12112 he", "  a\n\n b", "\u0928\u092e\u0938\u094d"})
      CHECK(a.encode(text, true) == b.encode(text, true));
  }
  std::string by_three = kSplit;
  by_three.replace(by_three.find(R"(|\p{N}|)"), 7, R"(|\p{N}{1,3}|)");
  const std::string dir = directory(byte_level(512, kNfc, by_three));
  CHECK_THROWS_WITH_AS(converted(dir), doctest::Contains("GGUF has no name for"), Error);
}

TEST_CASE("ends of text, the publisher's sampling and suppressed tokens are kept") {
  const auto file = converted(directory(byte_level(512, kNfc), {{"eos_token_id", {510, 508, 300}},
                                                                {"temperature", 0.7},
                                                                {"top_k", 20},
                                                                {"top_p", 0.8},
                                                                {"min_p", nullptr},
                                                                {"suppress_tokens", {7, 9, -1}}}));
  const Metadata& meta = file->meta();
  CHECK(meta.get_int("tokenizer.ggml.eos_token_id") == 510);
  CHECK(meta.get_int("tokenizer.ggml.eot_token_id") == 508);
  CHECK(meta.get_int("tokenizer.ggml.eom_token_id") == 300);
  CHECK(ints(*file, "tokenizer.ggml.eos_token_ids") == std::vector<int64_t>{510, 508, 300});
  const Tokenizer t = tokenizer(*file);
  for (const Token end : {510, 508, 300}) CHECK(t.is_end(end));
  CHECK_FALSE(t.is_end(511));
  CHECK(meta.get_float("general.sampling.temp") == doctest::Approx(0.7));
  CHECK(meta.get_float("general.sampling.top_p") == doctest::Approx(0.8));
  CHECK(meta.get_int("general.sampling.top_k") == 20);
  CHECK_FALSE(meta.find("general.sampling.min_p"));
  CHECK(ints(*file, "tokenizer.ggml.suppress_tokens") == std::vector<int64_t>{7, 9});
  const auto backend = make_ref_backend();
  const Model model = load_model(open_source(file->path()), *backend);
  CHECK(model.suppressed == std::vector<int32_t>{7, 9});
}

TEST_CASE("BOS: always for Gemma, for byte-level vocabularies only where the file says so") {
  const auto tiny = open_source(tiny_model());
  const auto adds = [](const std::string& path) { return tokenizer_from_source(*open_source(path)).add_bos; };
  CHECK(adds(rewritten(*tiny, [](Metadata& m) { m.set("tokenizer.ggml.add_bos_token", false); })));
  const auto bytes = converted(directory(byte_level(512, kNfc)));
  const auto bos = [](Metadata& m) { m.set("tokenizer.ggml.bos_token_id", int64_t{508}); };
  const std::vector<std::string> no_flag = {"tokenizer.ggml.add_bos_token"};
  CHECK_FALSE(adds(rewritten(*bytes, bos, no_flag)));
  CHECK(adds(rewritten(*bytes, [&](Metadata& m) { bos(m), m.set("tokenizer.ggml.add_bos_token", true); })));
  CHECK(adds(rewritten(
      *bytes, [&](Metadata& m) { bos(m), m.set("tokenizer.ggml.pre", "llama-bpe"); }, no_flag)));
  for (const bool absent : {false, true}) {  // llama.cpp's default: digits by three
    const std::string path = rewritten(*bytes,
                                       [&](Metadata& m) {
                                         if (!absent) m.set("tokenizer.ggml.pre", "default");
                                       },
                                       {"tokenizer.ggml.pre"});
    const Tokenizer t = tokenizer(*open_source(path));
    CHECK(t.encode("12112", false) == std::vector<Token>{t.find("12"), t.find("1"), t.find("12")});
  }
}

TEST_CASE("harmless oddities of a tokenizer are read as they were meant") {
  const auto tiny = open_source(tiny_model());
  const TokenizerData want = tokenizer_from_source(*tiny);
  const auto n = static_cast<int64_t>(want.tokens.size());
  const auto check = [&](const std::function<void(Metadata&)>& change) {
    const auto file = open_source(rewritten(*tiny, change));
    const TokenizerData got = tokenizer_from_source(*file);
    CHECK(got.tokens == want.tokens);
    CHECK(got.chat_template == want.chat_template);
    CHECK(got.eos == want.eos);
    const Tokenizer t(got);
    return t.data();
  };
  for (const int64_t id : {int64_t{4294967295}, n, int64_t{262144}}) {
    CAPTURE(id);
    CHECK(check([&](Metadata& m) { m.set("tokenizer.ggml.padding_token_id", id); }).pad == -1);
    CHECK(check([&](Metadata& m) { m.set("tokenizer.ggml.mask_token_id", id); }).mask == -1);
  }
  const auto list = [&](Metadata& m) {
    m.set("tokenizer.chat_template", std::vector<std::string>{want.chat_template, "other"});
  };
  check(list);
  const auto file = converted(rewritten(*tiny, list));  // other readers know a text alone
  CHECK(file->meta().get_string("tokenizer.chat_template") == want.chat_template);
  std::vector<int64_t> types = ints(*tiny, "tokenizer.ggml.token_type");
  types[700] = 0, types[701] = 9;
  check([&](Metadata& m) { m.set("tokenizer.ggml.token_type", types); });
}

TEST_CASE("one number as an array, a drafting head without its key or in a file of its own") {
  const auto tiny = open_source(tiny_model("tiny-hybrid"));
  const std::string arch = tiny->meta().get_string("general.architecture");
  const ModelFamily& family = find_family(arch);
  const ModelSpec want = family.read_spec(*tiny);
  const int64_t blocks = tiny->meta().get_int(arch + ".block_count");
  for (const char* key : {"feed_forward_length", "attention.head_count", "attention.head_count_kv"}) {
    CAPTURE(key);
    const std::string full = fmt::format("{}.{}", arch, key);
    std::vector<int64_t> all(static_cast<size_t>(blocks), tiny->meta().get_int(full));
    const auto read = [&] {
      return family.read_spec(*open_source(rewritten(*tiny, [&](Metadata& m) { m.set(full, all); })));
    };
    const auto same = [&](const ModelSpec& s) {
      return s.layers.back().heads == want.layers.back().heads &&
             s.layers.back().kv_heads == want.layers.back().kv_heads &&
             s.layers.back().ffn == want.layers.back().ffn;
    };
    CHECK(same(read()));
    all[0] = 0;  // a layer without the thing
    CHECK(same(read()));
    all[0] = 3;
    CHECK_THROWS_AS(read(), Error);
  }

  const std::string nextn = arch + ".nextn_predict_layers", head_block = fmt::format("blk.{}.", blocks - 1);
  const auto lost = open_source(rewritten(*tiny, [](Metadata&) {}, {nextn}));
  CHECK(family.read_spec(*lost).layers.size() == want.layers.size());
  CHECK(family.nextn_cache(*lost, DType::f16, DType::f16).from == 0);

  const std::string trunk = rewritten(
      *tiny, [&](Metadata& m) { m.set(arch + ".block_count", blocks - 1); }, {nextn}, "trunk",
      [&](const std::string& name) { return !name.starts_with(head_block); });
  const std::string head = rewritten(
      *tiny, [](Metadata&) {}, {}, "head",
      [&](const std::string& name) { return name.starts_with(head_block) || !name.starts_with("blk."); });
  const auto backend = make_ref_backend();
  CHECK_FALSE(family.is_head(*open_source(trunk)));
  CHECK_FALSE(family.is_head(*tiny));
  REQUIRE(family.is_head(*open_source(head)));
  const Model model = load_model(open_source(trunk), *backend);
  CHECK_FALSE(family.nextn(model, *backend, {}));
  CHECK(family.nextn(model, *backend, {.head_rows = 100, .file = open_source(head)}));
  CHECK_THROWS_WITH_AS(load_model(open_source(head), *backend), doctest::Contains("drafting head"), Error);
  const std::string wide = rewritten(
      *open_source(head), [&](Metadata& m) { m.set(arch + ".embedding_length", int64_t{want.dim + 32}); }, {},
      "wide");
  CHECK_THROWS_WITH_AS(family.nextn(model, *backend, {.file = open_source(wide)}), doctest::Contains("width"),
                       Error);
}
