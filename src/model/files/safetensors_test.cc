// safetensors files and Hugging Face directories: good ones, and a table of bad ones.
#include "model/files/safetensors.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "model/files/hf_dialect.h"

using namespace carat;
namespace fs = std::filesystem;

namespace {

std::string packed(std::string_view json, size_t data) {
  const uint64_t n = json.size();
  std::string s(reinterpret_cast<const char*>(&n), 8);
  s += json;
  for (size_t i = 0; i < data; ++i) s += static_cast<char>(i);
  return s;
}
std::vector<SafeTensor> parse(const std::string& s) {
  return parse_safetensors(std::as_bytes(std::span(s)), "t.safetensors");
}

struct TempDir {
  fs::path path = fs::temp_directory_path() / fmt::format("carat-hf-test-{}", ::getpid());
  TempDir() { fs::create_directories(path); }
  ~TempDir() { fs::remove_all(path); }
  std::string write(std::string_view name, std::string_view bytes) const {
    AtomicFile f((path / name).string());
    f.write(bytes);
    f.commit();
    return (path / name).string();
  }
  void copy(const std::string& from, std::string_view name) const {
    fs::copy_file(from, path / name, fs::copy_options::overwrite_existing);
  }
};

void check_error(const std::string& label, const std::string& part, const std::function<void()>& f) {
  CAPTURE(label);
  try {
    f();
    FAIL_CHECK("no error");
  } catch (const Error& e) {
    const std::string what = e.what();
    CAPTURE(what);
    CHECK(what.find(part) != std::string::npos);
    CHECK(what.size() < 500);
  }
}

std::string golden(std::string_view rest) { return fmt::format("{}/goldens/{}", CARAT_TEST_DATA, rest); }

}  // namespace

TEST_CASE("a safetensors file gives its tensors in order of their data") {
  const std::string s = packed(R"({"__metadata__":{"format":"pt"},)"
                               R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},)"
                               R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                               R"("z":{"dtype":"F32","shape":[0],"data_offsets":[26,26]}}   )",
                               26);
  const auto t = parse(s);
  REQUIRE(t.size() == 3);
  CHECK(t[0].name == "a");
  CHECK(t[0].shape.empty());
  CHECK(t[1].shape == std::vector<int64_t>{2, 3});
  CHECK(t[1].bytes == 24);
  CHECK(static_cast<int>(t[1].data[0]) == 2);
}

TEST_CASE("hostile and inconsistent safetensors files") {
  const auto one = [](std::string_view fields, size_t data = 8) {
    return packed(fmt::format(R"({{"a":{{{}}}}})", fields), data);
  };
  const std::string good = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  CHECK(parse(good).size() == 1);
  for (size_t i = 0; i < 64; ++i) {
    const std::string cut = good.substr(0, good.size() * i / 64);
    check_error(fmt::format("cut to {}", cut.size()), "t.safetensors", [&] { parse(cut); });
  }
  std::string big = good;
  const uint64_t n = uint64_t{1} << 40;
  std::memcpy(big.data(), &n, 8);
  check_error("header of a terabyte", "header of", [&] { parse(big); });
  const struct {
    const char* label;
    const char* says;
    std::string bytes;
  } cases[] = {
      {"not JSON", "JSON", packed("{]", 0)},
      {"not an object", "JSON", packed("[]", 0)},
      {"text behind", "JSON", packed("{} x", 0)},
      {"invalid UTF-8", "JSON", packed("{\"\xff\":{}}", 0)},
      {"unknown field", "field", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)")},
      {"no dtype", "without", one(R"("shape":[2],"data_offsets":[0,8])")},
      {"no shape", "without", one(R"("dtype":"F32","data_offsets":[0,8])")},
      {"no offsets", "without", one(R"("dtype":"F32","shape":[2])")},
      {"one offset", "without", one(R"("dtype":"F32","shape":[2],"data_offsets":[0])")},
      {"three offsets", "three", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])")},
      {"shape twice", "repeated", one(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])")},
      {"negative", "negative", one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])")},
      {"fraction", "fraction", one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])")},
      {"2^64", "fraction", one(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])")},
      {"2^63", "absurd", one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])")},
      {"overflow", "impossible",
       one(R"("dtype":"F32","shape":[1152921504606846976,16],"data_offsets":[0,8])")},
      {"many dimensions", "absurd", one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])")},
      {"nested", "array", one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])")},
      {"deep", "array", packed(R"({"a":)" + std::string(100000, '['), 0)},
      {"type", "unknown type", one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])")},
      {"size", "its shape needs 12", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])")},
      {"reversed", "hole", one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])")},
      {"behind the end", "ends inside", one(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])")},
      {"hole at the start", "hole", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])")},
      {"rest", "behind its last", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])")},
      {"overlap", "overlap",
       packed(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
              R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
              12)},
      {"hole", "hole",
       packed(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
              R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
              12)},
      {"twice the name", "twice",
       packed(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
              8)},
  };
  for (const auto& c : cases) check_error(c.label, c.says, [&] { parse(c.bytes); });
}

TEST_CASE("shard index: only files beside it") {
  const auto index = [](std::string_view file) {
    return parse_shard_index(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", file), "i.json");
  };
  CHECK(index("model-00001-of-00002.safetensors").at("a") == "model-00001-of-00002.safetensors");
  for (const char* bad : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", "x.txt"}) {
    check_error(bad, "shard", [&] { index(bad); });
  }
  for (const char* bad :
       {"", "[]", "{}", R"({"weight_map":1})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})"}) {
    check_error(bad, "i.json", [&] { parse_shard_index(bad, "i.json"); });
  }
}

TEST_CASE("a directory reads like a GGUF file; both config styles say the same") {
  for (const std::string name : {"gemma4_dense", "gemma4_e", "gemma4_moe"}) {
    CAPTURE(name);
    const auto source = open_source(golden(name));
    CHECK(source->format() == "safetensors");
    CHECK(source->meta().get_string("general.architecture") == "gemma4");
    CHECK(source->meta().get_string("general.name") == name);
    const HfModel old_style = read_hf_config(read_file(golden(name + "/config_release_style.json")), "c");
    for (const auto& [key, value] : old_style.meta.all()) {
      CAPTURE(key);
      REQUIRE(source->meta().find(key));
      CHECK(*source->meta().find(key) == value);
    }
    CHECK(old_style.meta.all().size() + 1 == source->meta().all().size());  // general.name
    const TensorInfo& scalar = source->get("blk.0.layer_output_scale.weight");
    CHECK(scalar.type == DType::f32);
    CHECK(scalar.elements() == 1);
    CHECK(source->get("token_embd.weight").type == DType::bf16);
    CHECK(source->get("token_embd.weight").shape == std::vector<int64_t>{512, 64});
    CHECK(source->find("output.weight") == nullptr);
    const TensorInfo& rope = source->get("rope_freqs.weight");
    const auto* f = reinterpret_cast<const float*>(rope.data);
    CHECK(rope.elements() == 16);
    CHECK(f[3] == 1.0F);
    CHECK(f[4] == 1e30F);
  }
}

TEST_CASE("per-layer values of the three shapes") {
  const auto dense = open_source(golden("gemma4_dense")), e = open_source(golden("gemma4_e")),
             moe = open_source(golden("gemma4_moe"));
  CHECK(dense->meta().get_ints_per_layer("gemma4.attention.head_count_kv", 7) ==
        std::vector<int64_t>{2, 2, 2, 1, 2, 2, 1});
  CHECK(dense->meta().get_ints_per_layer("gemma4.attention.sliding_window_pattern", 7) ==
        std::vector<int64_t>{1, 1, 1, 0, 1, 1, 0});
  CHECK(dense->meta().get_int("gemma4.attention.key_length") == 32);
  CHECK(dense->meta().get_int("gemma4.attention.key_length_swa") == 16);
  CHECK(dense->meta().get_float("gemma4.final_logit_softcapping") == 30);
  CHECK(dense->find("blk.3.attn_v.weight") == nullptr);
  CHECK(dense->find("blk.2.attn_v.weight") != nullptr);
  CHECK(e->meta().get_ints_per_layer("gemma4.feed_forward_length", 8) ==
        std::vector<int64_t>{96, 96, 96, 96, 96, 192, 192, 192});
  CHECK(e->meta().get_int("gemma4.attention.shared_kv_layers") == 3);
  CHECK(e->get("blk.7.attn_k.weight").shape == std::vector<int64_t>{32, 64});
  CHECK(e->get("blk.2.inp_gate.weight").shape == std::vector<int64_t>{16, 64});
  CHECK(moe->meta().get_int("gemma4.expert_used_count") == 4);
  CHECK(moe->get("blk.1.ffn_gate_up_exps.weight").shape == std::vector<int64_t>{16, 48, 64});
  CHECK(moe->get("blk.1.ffn_gate_inp.scale").type == DType::f32);
}

TEST_CASE("tensor names: every prefix in use, towers passed over, anything else refused") {
  CHECK(gguf_tensor_name("model.language_model.layers.12.mlp.up_proj.weight") == "blk.12.ffn_up.weight");
  CHECK(gguf_tensor_name("model.layers.0.self_attn.q_norm.weight") == "blk.0.attn_q_norm.weight");
  CHECK(gguf_tensor_name("language_model.model.embed_tokens.weight") == "token_embd.weight");
  CHECK(gguf_tensor_name("model.layers.3.moe.per_expert_scale") == "blk.3.ffn_down_exps.scale");
  CHECK(gguf_tensor_name("pre_projection.weight") == "nextn.pre_projection.weight");
  CHECK(gguf_tensor_name("masked_embedding.token_ordering") == "masked_embd_ordering");
  CHECK(gguf_tensor_name("model.vision_tower.encoder.layers.0.input_layernorm.weight") == "");
  CHECK(gguf_tensor_name("model.embed_audio.embedding_projection.weight") == "");
  for (const char* bad :
       {"", "x", "model.layers.01.input_layernorm.weight", "model.layers.-1.input_layernorm.weight",
        "model.layers.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.99999999999.input_layernorm.weight"}) {
    CHECK_FALSE(gguf_tensor_name(bad).has_value());
  }
}

TEST_CASE(
    "unaligned, sharded and half-precision checkpoints; towers and copies of the head are passed over") {
  const TempDir dir;
  dir.copy(golden("gemma4_dense/config.json"), "config.json");
  const std::string a =
      packed(R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
             R"("lm_head.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},)"
             R"("model.vision_tower.x":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[16,20]}})",
             20);
  const float values[] = {1.5F, -2.0F};
  std::string shard1 = a;
  std::memcpy(shard1.data() + shard1.size() - 20, values, 8);
  std::string shard2 = packed(R"({"model.norm.weight":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}})", 6);
  const uint16_t halves[] = {0x3e00, 0x0001, 0xfbff};  // 1.5, the smallest subnormal, -65504
  std::memcpy(shard2.data() + shard2.size() - 6, halves, 6);
  dir.write("m-1.safetensors", shard1);
  dir.write("m-2.safetensors", shard2);
  const auto map = [](std::string_view norm_file) {
    return fmt::format(R"({{"weight_map":{{"model.embed_tokens.weight":"m-1.safetensors",)"
                       R"("lm_head.weight":"m-1.safetensors",)"
                       R"("model.vision_tower.x":"m-1.safetensors","model.norm.weight":"{}"}}}})",
                       norm_file);
  };
  dir.write("model.safetensors.index.json", map("m-2.safetensors"));
  const auto source = open_source(dir.path.string());
  CHECK(source->skipped() == 1);
  CHECK(source->find("output.weight") == nullptr);
  const TensorInfo& embed = source->get("token_embd.weight");
  CHECK(reinterpret_cast<uintptr_t>(embed.data) % 4 == 0);
  CHECK(std::memcmp(embed.data, values, 8) == 0);
  const auto* norm = reinterpret_cast<const float*>(source->get("output_norm.weight").data);
  CHECK(norm[0] == 1.5F);
  CHECK(norm[1] == 0x1p-24F);
  CHECK(norm[2] == -65504.0F);

  dir.write("model.safetensors.index.json", map("m-3.safetensors"));
  check_error("shard missing", "m-", [&] { open_source(dir.path.string()); });
  dir.write("model.safetensors.index.json", map("m-1.safetensors"));
  check_error("tensor not in its shard", "index", [&] { open_source(dir.path.string()); });
  fs::remove(dir.path / "model.safetensors.index.json");
  check_error("no tensors", "neither", [&] { open_source(dir.path.string()); });
  dir.write("model.safetensors",
            packed(R"({"model.norm.weight":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", 8));
  check_error("type", "F8_E4M3", [&] { open_source(dir.path.string()); });
  dir.write("model.safetensors",
            packed(R"({"model.norm.weight_scale":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  check_error("unknown tensor", "weight_scale", [&] { open_source(dir.path.string()); });
  check_error("a file of a directory", "one safetensors file",
              [&] { open_source((dir.path / "model.safetensors").string()); });
  fs::remove(dir.path / "config.json");
  check_error("no config", "config.json", [&] { open_source(dir.path.string()); });
}

TEST_CASE("drafter configs") {
  const HfModel m =
      read_hf_config(R"({"model_type":"gemma4_assistant","backbone_hidden_size":64,"num_centroids":32,
      "centroid_intermediate_top_k":8,"use_ordered_embeddings":true,"text_config":{"num_hidden_layers":2,
      "layer_types":["sliding_attention","full_attention"],"max_position_embeddings":4096,
      "hidden_size":32,"head_dim":16,
      "num_attention_heads":4,"num_key_value_heads":2,"num_global_key_value_heads":1,"global_head_dim":32,
      "rms_norm_eps":1e-6,"sliding_window":16,"num_kv_shared_layers":2,"intermediate_size":64,
      "final_logit_softcapping":null,"rope_parameters":{"full_attention":{"rope_type":"proportional",
      "partial_rotary_factor":0.25,"rope_theta":1e6},"sliding_attention":{"rope_type":"default",
      "rope_theta":1e4}}}})",
                     "c");
  CHECK(m.meta.get_string("general.architecture") == "gemma4-assistant");
  CHECK(m.meta.get_int("gemma4-assistant.embedding_length_out") == 64);
  CHECK(m.meta.get_int("gemma4-assistant.nextn_predict_layers") == 2);
  CHECK(m.meta.get_int("gemma4-assistant.centroid_top_k") == 8);
  CHECK(m.meta.get_float("gemma4-assistant.final_logit_softcapping") == 0);
  CHECK(m.meta.get_ints_per_layer("gemma4-assistant.attention.head_count_kv", 2) ==
        std::vector<int64_t>{2, 1});
}

TEST_CASE("hostile and inconsistent configs") {
  const std::string good = read_file(golden("gemma4_moe/config.json"));
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string s = good;
    const size_t at = s.find(from);
    REQUIRE(at != s.npos);
    return s.replace(at, from.size(), to);
  };
  for (size_t i = 0; i < 64; ++i) {
    const std::string cut = good.substr(0, good.size() * i / 64);
    check_error(fmt::format("cut to {}", cut.size()), "'c'", [&] { read_hf_config(cut, "c"); });
  }
  for (const char* type : {"gemma4_unified", "gemma4_unified_text"})
    CHECK(read_hf_config(with(R"("model_type": "gemma4")", fmt::format(R"("model_type": "{}")", type)), "c")
              .meta.all() == read_hf_config(good, "c").meta.all());
  // What describes no quantization is none: the tensors decide.
  for (const char* none : {"null", "{}"})
    CHECK(read_hf_config(with(R"("text_config": {)",
                              fmt::format(R"("quantization_config": {}, "text_config": {{)", none)),
                         "c")
              .meta.all() == read_hf_config(good, "c").meta.all());
  const struct {
    const char* says;
    std::string text;
  } cases[] = {
      {"llama", with(R"("model_type": "gemma4")", R"("model_type": "llama")")},
      {"model_type", with(R"("model_type": "gemma4")", R"("model_type": 4)")},
      {"num_hidden_layers", with(R"("num_hidden_layers": 6)", R"("num_hidden_layers": 1000000000)")},
      {"num_hidden_layers", with(R"("num_hidden_layers": 6)", R"("num_hidden_layers": -6)")},
      {"num_hidden_layers", with(R"("num_hidden_layers": 6)", R"("num_hidden_layers": 6.5)")},
      {"num_hidden_layers",
       with(R"("num_hidden_layers": 6)", R"("num_hidden_layers": 18446744073709551615)")},
      {"layer_types", with(R"("num_hidden_layers": 6)", R"("num_hidden_layers": 7)")},
      {"layer type", with(R"("sliding_attention")", R"("linear_attention")")},
      {"hidden_size", with(R"("hidden_size": 64)", R"("hidden_size": "64")")},
      {"rms_norm_eps", with(R"("rms_norm_eps": 1e-06)", R"("rms_norm_eps": 0)")},
      {"sliding_window", with(R"("sliding_window": 16,)", "")},
      {"num_kv_shared_layers", with(R"("num_kv_shared_layers": 0)", R"("num_kv_shared_layers": -1)")},
      {"shares", with(R"("num_kv_shared_layers": 0)", R"("num_kv_shared_layers": 7)")},
      {"top_k_experts", with(R"("top_k_experts": 4)", R"("top_k_experts": 17)")},
      {"rope", with(R"("rope_type": "proportional")", R"("rope_type": "yarn")")},
      {"head sizes", with(R"("head_dim": 32)", R"("head_dim": 64)")},
      {"per_layer_config", with(R"("per_layer_config": {)", R"("per_layer_config": 1, "x": {)")},
      {"deep", R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}"},
  };
  for (const auto& c : cases) check_error(c.says, c.says, [&] { read_hf_config(c.text, "c"); });
}
