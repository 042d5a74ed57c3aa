// Gemma 4's specification and binding: what files may leave out, and that everything absurd is one Error
// naming it.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "core/codec.h"
#include "model/families/gemma4.h"
#include "model/families/gemma4_spec.h"
#include "tests/heap_backend.h"

using namespace carat;
using carat::test::HeapBackend;

namespace {

// A golden model's tensors and metadata, to be changed before use.
class Edited : public WeightSource {
 public:
  explicit Edited(const std::string& name)
      : from_(open_source(std::string(CARAT_TEST_DATA) + "/goldens/" + name)) {
    path_ = from_->path(), format_ = "edited", meta_ = from_->meta();
    tensors_.assign(from_->tensors().begin(), from_->tensors().end());
    index();
  }
  void set(const std::string& key, MetaValue v) { meta_.set("gemma4." + key, std::move(v)); }
  void drop(const std::string& key) {
    Metadata rest;
    for (const auto& [k, v] : meta_.all())
      if (k != "gemma4." + key) rest.set(k, v);
    meta_ = rest;
  }
  void rename(const std::string& from, const std::string& to) {
    tensor(from).name = to;
    again();
  }
  void reshape(const std::string& name, std::vector<int64_t> shape) { tensor(name).shape = std::move(shape); }
  void retype(const std::string& name, DType t) { tensor(name).type = t; }
  void add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    memory_.push_back(std::make_unique<std::vector<float>>(values));
    TensorInfo t;
    t.name = name, t.shape = std::move(shape), t.bytes = values.size() * 4;
    t.data = reinterpret_cast<const std::byte*>(memory_.back()->data());
    tensors_.push_back(t);
    again();
  }
  std::vector<float> values(const std::string& name) const {
    const TensorInfo& t = get(name);
    std::vector<float> v(static_cast<size_t>(t.elements()));
    decode_row(t.type, t.data, v.data(), t.elements());
    return v;
  }

 private:
  TensorInfo& tensor(const std::string& name) {
    for (TensorInfo& t : tensors_)
      if (t.name == name) return t;
    throw Error("no " + name);
  }
  void again() { index(); }
  std::unique_ptr<WeightSource> from_;
  std::vector<std::unique_ptr<std::vector<float>>> memory_;
};

using Edit = std::function<void(Edited&)>;

// Reads, binds, builds and checks; the message if that fails.
std::string error_of(const std::string& golden, const Edit& edit) {
  Edited source(golden);
  edit(source);
  HeapBackend backend;
  try {
    const ModelSpec spec = kGemma4.read_spec(source);
    const auto weights = kGemma4.bind(source, spec, backend, {});
    const KvPool kv(backend, kv_layers(spec, DType::f32, DType::f32), {64, 1, 8, 16});
    Program program;
    Arena arena(backend);
    Build b{program, spec, kv, arena, 8, 2};
    kGemma4.build(b, *weights);
    const StepState state;
    backend.compile(program, &state);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void refused(const std::string& golden, const std::string& part, const Edit& edit) {
  const std::string message = error_of(golden, edit);
  CAPTURE(message);
  CAPTURE(part);
  CHECK(message.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("the spec of each golden model") {
  const ModelSpec dense = kGemma4.read_spec(Edited("gemma4_dense"));
  CHECK(dense.layers.size() == 7);
  CHECK(dense.vocab == 512);
  CHECK(dense.embed_scale == 8);
  CHECK(dense.final_softcap == 30);
  CHECK(dense.last_kv_owner() == 6);
  CHECK(dense.layers[0].window == 16);
  CHECK(dense.layers[0].head_dim == 16);
  CHECK(dense.layers[0].rope_pairs == 8);
  CHECK_FALSE(dense.layers[0].k_is_v);
  CHECK(dense.layers[3].window == 0);
  CHECK(dense.layers[3].head_dim == 32);
  CHECK(dense.layers[3].kv_heads == 1);
  CHECK(dense.layers[3].rope_pairs == 4);
  CHECK(dense.layers[3].rope_base == 1e6f);
  CHECK(dense.layers[3].k_is_v);
  const ModelSpec moe = kGemma4.read_spec(Edited("gemma4_moe"));
  CHECK(moe.layers[5].experts == 16);
  CHECK(moe.layers[5].experts_used == 4);
  CHECK(moe.layers[5].expert_ffn == 24);
  const ModelSpec e = kGemma4.read_spec(Edited("gemma4_e"));
  CHECK(e.per_layer_dim == 16);
  CHECK(e.last_kv_owner() == 4);
  CHECK(e.layers[4].ffn == 96);
  CHECK(e.layers[5].ffn == 192);
  CHECK(e.layers[5].kv_from == 3);
  CHECK(e.layers[6].kv_from == 3);
  CHECK(e.layers[7].kv_from == 4);
}

TEST_CASE("what files may leave out or write otherwise") {
  const Edit none = [](Edited&) {};
  for (const std::string name : {"gemma4_dense", "gemma4_moe", "gemma4_e"}) CHECK(error_of(name, none) == "");
  CHECK(error_of("gemma4_dense", [](Edited& s) { s.rename("rope_freqs.weight", "unused"); }) == "");
  CHECK(error_of("gemma4_dense",
                 [](Edited& s) { s.set("attention.head_count", std::vector<int64_t>(7, 4)); }) == "");
  CHECK(error_of("gemma4_dense",
                 [](Edited& s) { s.set("feed_forward_length", std::vector<int64_t>(7, 128)); }) == "");
  CHECK(error_of("gemma4_dense", [](Edited& s) {
          s.set("attention.sliding_window_pattern", std::vector<int64_t>{1, 1, 1, 0, 1, 1, 0});
        }) == "");
  CHECK(error_of("gemma4_moe", [](Edited& s) { s.rename("blk.0.ffn_down_exps.scale", "unused"); }) == "");
}

TEST_CASE("without keys of the rotation and output scales: what all published models have, and 1") {
  Edited source("gemma4_dense");
  source.drop("rope.freq_base");
  source.drop("rope.freq_base_swa");
  const ModelSpec s = kGemma4.read_spec(source);
  CHECK(s.layers[3].rope_base == 1e6f);
  CHECK(s.layers[0].rope_base == 1e4f);
  CHECK(error_of("gemma4_dense", [](Edited& e) {
          for (int i = 0; i < 7; ++i)
            e.rename(fmt::format("blk.{}.layer_output_scale.weight", i), fmt::format("unused.{}", i));
        }) == "");
}

TEST_CASE("rope_freqs decides which global pairs turn; without it a quarter of the head does") {
  Edited source("gemma4_dense");
  source.rename("rope_freqs.weight", "unused");
  CHECK(kGemma4.read_spec(source).layers[3].rope_pairs == 4);
  std::vector<float> f(16, 1e30f);
  std::fill_n(f.begin(), 6, 1.0f);
  source.add("rope_freqs.weight", {16}, f);
  CHECK(kGemma4.read_spec(source).layers[3].rope_pairs == 6);
  CHECK(kGemma4.read_spec(source).layers[0].rope_pairs == 8);
}

TEST_CASE("an untied head and separate expert stacks are used when present") {
  Edited source("gemma4_moe");
  const std::vector<float> fused = source.values("blk.1.ffn_gate_up_exps.weight");
  std::vector<float> gate, up;
  for (int64_t e = 0; e < 16; ++e) {
    const auto at = fused.begin() + e * 48 * 64;
    gate.insert(gate.end(), at, at + 24 * 64);
    up.insert(up.end(), at + 24 * 64, at + 48 * 64);
  }
  source.rename("blk.1.ffn_gate_up_exps.weight", "unused");
  source.add("blk.1.ffn_gate_exps.weight", {16, 24, 64}, gate);
  source.add("blk.1.ffn_up_exps.weight", {16, 24, 64}, up);
  source.add("blk.1.ffn_up_exps.scale", {16}, std::vector<float>(16, 2));
  source.add("blk.0.attn_q.scale", {1}, {3});
  source.add("output.weight", {512, 64}, std::vector<float>(512 * 64, 0.5f));
  HeapBackend backend;
  const ModelSpec spec = kGemma4.read_spec(source);
  const auto weights = kGemma4.bind(source, spec, backend, {});
  const KvPool kv(backend, kv_layers(spec, DType::f16, DType::f16), {64, 1, 8, 16});
  Program program;
  Arena arena(backend);
  Build b{program, spec, kv, arena, 1, 1};
  kGemma4.build(b, *weights);
  bool scaled = false;
  for (const OpRecord& op : program.ops()) {
    if (op.op == Op::Experts && op.layer == 1) {
      const auto& a = op.as<ExpertsArgs>();
      CHECK(a.up.slice(15).row<float>(23)[63] == up.back());
      CHECK(a.gate.slice(1).row<float>(0)[0] == gate[24 * 64]);
      CHECK(a.up_scale.row<float>(0)[15] == 2);
      CHECK_FALSE(a.gate_scale.valid());
    }
    if (op.op == Op::Matmul && op.layer == 0 && op.as<MatmulArgs>().scale == 3) scaled = true;
  }
  CHECK(scaled);
  const auto& head = program.ops().back().as<MatmulArgs>();
  CHECK(head.w.row<float>(511)[63] == 0.5f);
  CHECK(head.softcap == 30);
}

TEST_CASE("programs: wanted rows only behind the last cache owner, in the scratch they share") {
  Edited source("gemma4_e");
  HeapBackend backend;
  const ModelSpec spec = kGemma4.read_spec(source);
  const auto weights = kGemma4.bind(source, spec, backend, {});
  const KvPool kv(backend, kv_layers(spec, DType::f16, DType::f16), {64, 1, 32, 16});
  Arena arena(backend);
  Program large, small;
  Build b{large, spec, kv, arena, 32, 2};
  const Outputs out = kGemma4.build(b, *weights);
  CHECK(out.logits.rows == 2);
  CHECK(out.logits.cols == 512);
  const int64_t bytes = arena.bytes();
  Build c{small, spec, kv, arena, 4, 1};
  kGemma4.build(c, *weights);
  CHECK(arena.bytes() == bytes);
  for (const OpRecord& op : large.ops()) {
    CAPTURE(op.layer);
    if (op.layer >= 0 && op.layer < 4) CHECK(op.rows == RowSet::all);
    if (op.layer > 4) CHECK(op.rows == RowSet::out);
    if (op.op == Op::QkvPrep) CHECK(op.as<QkvPrepArgs>().k.valid() == (op.layer <= 4));
  }
  Arena measure;
  Program unused;
  Build d{unused, spec, kv, measure, 32, 2};
  kGemma4.build(d, *weights);
  CHECK(measure.bytes() > 0);
  CHECK(measure.bytes() <= bytes);
}

TEST_CASE("absurd metadata is refused with the key's name") {
  const auto set = [](const char* key, MetaValue v) { return Edit([=](Edited& s) { s.set(key, v); }); };
  const std::string d = "gemma4_dense";
  refused(d, "gemma4.block_count", set("block_count", int64_t{0}));
  refused(d, "gemma4.block_count", set("block_count", int64_t{1} << 40));
  refused(d, "gemma4.embedding_length", set("embedding_length", int64_t{-1}));
  refused(d, "token_embd.weight", set("embedding_length", int64_t{128}));
  refused(d, "gemma4.context_length", set("context_length", int64_t{0}));
  refused(d, "gemma4.attention.head_count", set("attention.head_count", std::string("four")));
  refused(d, "3 query heads for 2 KV heads", set("attention.head_count", int64_t{3}));
  refused(d, "gemma4.attention.head_count_kv", set("attention.head_count_kv", std::vector<int64_t>{1, 2}));
  refused(d, "gemma4.attention.key_length", set("attention.key_length", int64_t{33}));
  refused(d, "gemma4.attention.value_length_swa", set("attention.value_length_swa", int64_t{32}));
  refused(d, "gemma4.rope.dimension_count", set("rope.dimension_count", int64_t{8}));
  refused(d, "gemma4.attention.sliding_window", set("attention.sliding_window", int64_t{0}));
  refused(d, "7 layers", set("attention.sliding_window_pattern", std::vector<bool>(6)));
  refused(d, "sliding_window_pattern", set("attention.sliding_window_pattern", int64_t{6}));
  refused(d, "gemma4.attention.shared_kv_layers", set("attention.shared_kv_layers", int64_t{7}));
  refused(d, "layer 3 shares keys and values", set("attention.shared_kv_layers", int64_t{4}));
  refused(d, "gemma4.rope.freq_base_swa", set("rope.freq_base_swa", 0.0));
  refused(d, "gemma4.rope.freq_base", set("rope.freq_base", std::nan("")));
  refused(d, "layer_norm_rms_epsilon", set("attention.layer_norm_rms_epsilon", -1.0));
  refused(d, "final_logit_softcapping", set("final_logit_softcapping", -1.0));
  refused(d, "gemma4.feed_forward_length", set("feed_forward_length", std::vector<int64_t>{128}));
  refused("gemma4_moe", "gemma4.expert_used_count", set("expert_used_count", int64_t{17}));
  refused("gemma4_moe", "gemma4.expert_count", set("expert_count", int64_t{-3}));
  refused("gemma4_e", "per-layer embeddings", set("embedding_length_per_layer_input", int64_t{1} << 20));
}

TEST_CASE("missing, misshapen and mistyped tensors are refused by name") {
  const auto gone = [](const char* name) { return Edit([=](Edited& s) { s.rename(name, "unused"); }); };
  const auto shape = [](const char* name, std::vector<int64_t> v) {
    return Edit([=](Edited& s) { s.reshape(name, v); });
  };
  const std::string d = "gemma4_dense";
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "blk.6.attn_norm.weight", "blk.0.attn_q.weight",
        "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.2.attn_output.weight",
        "blk.5.layer_output_scale.weight", "blk.1.ffn_down.weight", "blk.3.attn_k_norm.weight"})
    refused(d, name, gone(name));
  for (const char* name : {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.scale",
                           "blk.2.ffn_down_exps.weight", "blk.0.pre_ffw_norm_2.weight"})
    refused("gemma4_moe", name, gone(name));
  for (const char* name :
       {"per_layer_token_embd.weight", "per_layer_model_proj.weight", "blk.7.inp_gate.weight"})
    refused("gemma4_e", name, gone(name));
  refused(d, "'blk.0.attn_q.weight' has the shape [64, 32], expected [64, 64]",
          shape("blk.0.attn_q.weight", {64, 32}));
  refused(d, "'blk.0.ffn_norm.weight' has the shape [63]", shape("blk.0.ffn_norm.weight", {63}));
  refused(d, "token_embd.weight", shape("token_embd.weight", {512}));
  refused(d, "rope_freqs.weight", shape("rope_freqs.weight", {15}));
  refused(d, "'blk.0.attn_q.weight' is i16", [](Edited& s) { s.retype("blk.0.attn_q.weight", DType::i16); });
  refused(d, "'blk.0.ffn_norm.weight' is i16",
          [](Edited& s) { s.retype("blk.0.ffn_norm.weight", DType::i16); });
}

TEST_CASE("families: known and unknown architectures") {
  CHECK(find_family("gemma4").arch == "gemma4");
  try {
    find_family("llama\x01");
    FAIL("found");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find("'llama?'") != std::string::npos);
    CHECK(e.hint().find("gemma4") != std::string::npos);
  }
}

TEST_CASE("load_model reports progress that only grows and ends at 1") {
  HeapBackend backend;
  double last = 0;
  int calls = 0;
  load_model(open_source(std::string(CARAT_TEST_DATA) + "/goldens/gemma4_e"), backend,
             [&](double f, std::string_view what) {
               CHECK(f >= last);
               CHECK(f <= 1);
               CHECK_FALSE(what.empty());
               last = f;
               ++calls;
             });
  CHECK(last == 1);
  CHECK(calls > 20);
}
