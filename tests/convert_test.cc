// convert, forge, inspect: what they write can be read back and is what was asked for.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>

#include "apps/inspect.h"
#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "model/model.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"
#include "tools/forge.h"
#include "tools/forge_fill.h"
#include "tools/forge_vocab.h"
#include "tools/imatrix.h"
#include "tools/type_mix.h"
#include "tools/vocab.h"

using namespace carat;
namespace fs = std::filesystem;

namespace {

std::string golden(std::string_view rest) { return fmt::format("{}/goldens/{}", CARAT_TEST_DATA, rest); }
std::string out_path(std::string_view name) { return fmt::format("{}/{}", test_directory(), name); }

std::vector<float> values(const TensorInfo& info) {
  const Tensor t = info.tensor();
  std::vector<float> y(static_cast<size_t>(info.elements()));
  for (int64_t r = 0; r < int64_t{t.rows} * t.slices; ++r) {
    decode_row(t.type, t.data + r * t.pitch, y.data() + r * t.cols, t.cols);
  }
  return y;
}
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double e = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    e += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    n += double{a[i]} * a[i];
  }
  return std::sqrt(e / n);
}
size_t files_in_test_directory() {
  return static_cast<size_t>(std::distance(fs::directory_iterator(test_directory()), {}));
}

std::map<DType, int> histogram(const char* shape) {
  ForgeOptions options;
  options.shape = shape;
  return plan_forge(options).histogram;
}

}  // namespace

TEST_CASE("a golden directory converted to bf16 holds the same bytes under the same names") {
  for (const std::string name : {"gemma4_dense", "gemma4_e", "gemma4_moe"}) {
    CAPTURE(name);
    const std::string path = out_path(name + ".gguf");
    const ConvertResult r = convert({.in = golden(name), .out = path, .type = "bf16", .threads = 2});
    CHECK_FALSE(r.has_tokenizer);
    const auto a = open_source(golden(name)), b = open_source(path);
    CHECK(b->format() == "GGUF v3");
    REQUIRE(a->tensors().size() == b->tensors().size());
    CHECK(r.tensors == b->tensors().size());
    CHECK(r.bytes_out == fs::file_size(path));
    for (const TensorInfo& t : a->tensors()) {
      CAPTURE(t.name);
      const TensorInfo& u = b->get(t.name);
      CHECK(u.shape == t.shape);
      if (t.name.ends_with("ffn_gate_inp.weight")) {
        CHECK(u.type == DType::f32);
        CHECK(values(u) == values(t));
        continue;
      }
      REQUIRE(u.type == t.type);
      CHECK(std::memcmp(u.data, t.data, t.bytes) == 0);
    }
    for (const auto& [key, value] : a->meta().all()) {
      CAPTURE(key);
      REQUIRE(b->meta().find(key));
      if (const auto* d = std::get_if<double>(&value)) {
        CHECK(b->meta().get_float(key) == doctest::Approx(*d).epsilon(1e-7));  // stored as f32
      } else {
        CHECK(*b->meta().find(key) == value);
      }
    }
    CHECK(b->meta().get_int("general.file_type") == 32);
    const ModelFamily& family = find_family("gemma4");
    CHECK(family.read_spec(*b).layers.size() == family.read_spec(*a).layers.size());
  }
}

TEST_CASE("every type that can be written keeps the values within its own error") {
  const std::string source = tiny_model("tiny", "f32");
  const auto a = open_source(source);
  const struct {
    const char* type;
    DType matrix;
    double error;  // a little above the error of Gaussian rows (formats.md section 11)
  } cases[] = {{"f16", DType::f16, 1e-3},     {"bf16", DType::bf16, 4e-3},   {"q8_0", DType::q8_0, 8e-3},
               {"q6_k", DType::q6_k, 0.03},   {"q5_k_m", DType::q5_k, 0.05}, {"q4_k_m", DType::q4_k, 0.09},
               {"q4_k_s", DType::q4_k, 0.09}, {"q5_0", DType::q5_0, 0.06},   {"q5_1", DType::q5_1, 0.05},
               {"q4_0", DType::q4_0, 0.11},   {"q4_1", DType::q4_1, 0.10},   {"iq4_xs", DType::iq4_xs, 0.11}};
  for (const auto& c : cases) {
    CAPTURE(c.type);
    if (!can_encode(c.matrix)) continue;
    const std::string path = out_path("typed.gguf");
    convert({.in = source, .out = path, .type = c.type, .threads = 2});
    const auto b = open_source(path);
    CHECK(b->get("blk.3.ffn_up.weight").type == c.matrix);
    for (const TensorInfo& t : a->tensors()) {
      CAPTURE(t.name);
      CHECK(relative_error(values(t), values(b->get(t.name))) < c.error);
    }
    CHECK(b->meta().find_strings("tokenizer.ggml.tokens")->size() == 768);
  }
}

TEST_CASE("a conversion does not depend on threads, and its own type is copied") {
  const std::string source = tiny_model("tiny-moe", "f32"), one = out_path("one.gguf"),
                    two = out_path("two.gguf");
  convert({.in = source, .out = one, .type = "q8_0", .threads = 1});
  convert({.in = source, .out = two, .type = "q8_0", .threads = 3});
  CHECK(read_file(one) == read_file(two));
  convert({.in = one, .out = two, .type = "q8_0", .threads = 2});
  CHECK(read_file(one) == read_file(two));
}

TEST_CASE("conversion errors are one line and leave nothing") {
  const std::string source = tiny_model();
  const size_t files = files_in_test_directory();
  CHECK_THROWS_AS(convert({.in = source, .out = out_path("x.gguf"), .type = "q9"}), Error);
  CHECK_THROWS_AS(convert({.in = source, .out = source, .type = "q8_0"}), Error);
  CHECK_THROWS_AS(convert({.in = out_path("none"), .out = out_path("x.gguf"), .type = "q8_0"}), Error);
  CHECK_THROWS_AS(convert({.in = source, .out = out_path("no/x.gguf"), .type = "q8_0"}), Error);
  CHECK_THROWS_AS(convert({.in = source, .out = test_directory(), .type = "q8_0"}), Error);
  CHECK_THROWS_AS(convert({.in = source, .out = out_path("x.gguf"), .type = "q8_0", .imatrix = source}),
                  Error);
  CHECK(files_in_test_directory() == files);
}

TEST_CASE("a full disk during convert and forge is an Error and leaves no file") {
  const std::string source = tiny_model();
  const size_t files = files_in_test_directory();
  const pid_t child = ::fork();
  if (child == 0) {  // a limit on file sizes fails a write as a full disk does
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int failed = 0;
    try {
      convert({.in = source, .out = out_path("full.gguf"), .type = "q8_0", .threads = 1});
    } catch (const Error& e) {
      failed += std::string(e.what()).find("full.gguf") != std::string::npos;
    }
    try {
      forge({.shape = "tiny", .out = out_path("full.gguf"), .threads = 1});
    } catch (const Error& e) {
      failed += std::string(e.what()).find("full.gguf") != std::string::npos;
    }
    ::_exit(failed);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(files_in_test_directory() == files);
}

TEST_CASE("published parameter counts, tensor counts and type histograms") {
  for (const char* name : {"e2b", "e4b", "26b-a4b", "31b", "qwen3.6-27b"}) {
    CAPTURE(name);
    const ModelShape& s = find_shape(name);
    CHECK(parameter_count(shape_tensors(s)) == s.parameters);
  }
  using H = std::map<DType, int>;
  CHECK(histogram("e2b") ==
        H{{DType::f32, 283}, {DType::bf16, 1}, {DType::q4_k, 194}, {DType::q5_k, 70}, {DType::q6_k, 53}});
  CHECK(histogram("26b-a4b") ==
        H{{DType::f32, 392}, {DType::q5_0, 32}, {DType::q8_0, 28}, {DType::q4_k, 192}, {DType::q6_k, 14}});
  int tensors = 0;
  for (const auto& [type, n] : histogram("31b")) tensors += n;
  CHECK(tensors == 833);
  tensors = 0;
  for (const auto& [type, n] : histogram("qwen3.6-27b")) tensors += n;
  CHECK(tensors == 866);  // 15 of them the drafting head's
  CHECK(histogram("qwen3.6-27b")[DType::f32] == 360);
  CHECK_THROWS_AS(find_shape("70b"), Error);
}

TEST_CASE("types of a recipe") {
  CHECK(fitting_type(DType::q4_k, 704) == DType::q5_0);
  CHECK(fitting_type(DType::q6_k, 2112) == DType::q8_0);
  CHECK(fitting_type(DType::q5_k, 96) == DType::q5_1);
  CHECK(fitting_type(DType::iq4_xs, 96) == DType::iq4_nl);
  CHECK(fitting_type(DType::q8_0, 40) == DType::f16);
  CHECK(find_recipe("Q4_K_M") != nullptr);
  CHECK(find_recipe("q4") == nullptr);
  const auto mxfp4 = open_source(tiny_model("tiny-moe", "f32"));
  TypeMix mix(*find_recipe("mxfp4_moe"), {.layers = 4});
  CHECK(mix.type_of("blk.0.ffn_down_exps.weight", {8, 256, 96}) == DType::mxfp4);
  CHECK(mix.type_of("blk.0.ffn_down.weight", {256, 288}) == DType::q8_0);
  CHECK_FALSE(mix.type_of("blk.0.ffn_gate_inp.weight", {8, 256}).has_value());
  CHECK_FALSE(mix.type_of("blk.0.attn_norm.weight", {256}).has_value());
}

TEST_CASE("random blocks have mean 0 and the deviation that was asked for") {
  for (const DType type :
       {DType::f32,    DType::bf16,    DType::q4_0,  DType::q4_1,  DType::q5_0,    DType::q5_1,
        DType::q8_0,   DType::q2_k,    DType::q3_k,  DType::q4_k,  DType::q5_k,    DType::q6_k,
        DType::iq4_nl, DType::iq4_xs,  DType::mxfp4, DType::nvfp4, DType::iq2_xxs, DType::iq2_xs,
        DType::iq2_s,  DType::iq3_xxs, DType::iq3_s}) {
    for (const float sigma : {0.0068F, 0.0625F}) {
      CAPTURE(info(type).name);
      CAPTURE(sigma);
      const int64_t n = 1 << 18;
      std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, n)));
      fill_random(type, bytes.data(), n, sigma, 7);
      std::vector<float> y(static_cast<size_t>(n));
      decode_row(type, bytes.data(), y.data(), n);
      double sum = 0, squares = 0;
      for (const float v : y) {
        sum += v;
        squares += double{v} * v;
      }
      CHECK(std::abs(sum / n) < 0.02 * sigma);
      CHECK(std::sqrt(squares / n) == doctest::Approx(sigma).epsilon(0.03));
    }
  }
}

TEST_CASE("forge: the seed alone decides the bytes; the file opens as a model") {
  const std::string a = out_path("fa.gguf"), b = out_path("fb.gguf");
  for (const char* shape : {"tiny", "tiny-moe", "tiny-e"}) {
    CAPTURE(shape);
    const size_t bytes = forge({.shape = shape, .out = a, .seed = 5, .threads = 1});
    forge({.shape = shape, .out = b, .seed = 5, .threads = 3});
    CHECK(bytes == fs::file_size(a));
    CHECK(read_file(a) == read_file(b));
    forge({.shape = shape, .out = b, .seed = 6, .threads = 3});
    CHECK(read_file(a) != read_file(b));
    const auto source = open_source(a);
    const ModelSpec spec = find_family("gemma4").read_spec(*source);
    const ModelShape& s = find_shape(shape);
    REQUIRE(static_cast<int32_t>(spec.layers.size()) == s.layers);
    CHECK(spec.vocab == s.vocab);
    CHECK(spec.per_layer_dim == s.per_layer);
    CHECK(spec.layers.back().window == 0);
    CHECK(spec.layers.back().rope_pairs == s.head_global / 8);
    CHECK(parameter_count(*source) == parameter_count(shape_tensors(s)));
  }
}

TEST_CASE("forged vocabularies: special tokens in place, every text has its tokens") {
  for (const int32_t size : {768, 262144}) {
    CAPTURE(size);
    const TokenizerData data = forge_vocabulary(size);
    REQUIRE(static_cast<int32_t>(data.tokens.size()) == size);
    const Tokenizer tokenizer{forge_vocabulary(size)};
    CHECK(tokenizer.find("<|turn>") == 105);
    CHECK(tokenizer.find("<|\"|>") == 52);
    CHECK(tokenizer.is_end(106));
    CHECK(tokenizer.encode("<|turn>", true) == std::vector<Token>{105});
    for (const std::string text :
         {"the user said: {\"a\": 1}\n\n  x = [2]\n", "Z\xc3\xbcrich \xe6\xbc\xa2\xe5\xad\x97"}) {
      CHECK(tokenizer.decode(tokenizer.encode(text, false), false) == text);
    }
    CHECK(tokenizer.encode("the", false).size() <= 2);
    // through a file's metadata and back
    Metadata meta;
    tokenizer_to_metadata(data, meta);
    CHECK(meta.find_strings("tokenizer.ggml.merges")->size() > 100);
  }
  const Tokenizer full{forge_vocabulary(262144)};
  CHECK(full.encode("Hello", false) == std::vector<Token>{9259});
  CHECK(full.encode("user", false) == std::vector<Token>{2364});
  CHECK(full.encode("thought", false) == std::vector<Token>{45518});
  CHECK(full.encode("call", false) == std::vector<Token>{6639});
  CHECK(full.find(":") == 236787);
  CHECK(full.find("<|image|>") == 258880);
}

TEST_CASE("a tokenizer survives its way through a file") {
  const auto source = open_source(tiny_model());
  REQUIRE(has_tokenizer(*source));
  const TokenizerData a = forge_vocabulary(768), b = tokenizer_from_source(*source);
  CHECK(a.model == b.model);
  CHECK(a.tokens == b.tokens);
  CHECK(a.types == b.types);
  CHECK(a.merges == b.merges);
  CHECK(a.chat_template == b.chat_template);
  CHECK(a.bos == b.bos);
  CHECK(a.eos == b.eos);
  CHECK(a.unk == b.unk);
  CHECK(a.pad == b.pad);
  CHECK(a.mask == b.mask);
  CHECK(a.add_bos == b.add_bos);
  CHECK(std::set(a.end_of_generation.begin(), a.end_of_generation.end()) ==
        std::set(b.end_of_generation.begin(), b.end_of_generation.end()));
  const auto without = open_source(golden("gemma4_dense"));
  CHECK_FALSE(has_tokenizer(*without));
  CHECK_THROWS_AS(tokenizer_from_source(*without), Error);
}

TEST_CASE("imatrix files of both forms weigh the same columns") {
  const std::vector<float> sums = {2, 4, 6, 8, 0, 0}, counts = {2, 0};  // two experts, three columns
  Metadata meta;
  meta.set("general.type", "imatrix");
  meta.set("imatrix.chunk_count", int64_t{3});
  meta.set("imatrix.datasets", std::vector<std::string>{"d.txt"});
  const std::string gguf = out_path("i.gguf"), dat = out_path("i.dat");
  {
    GgufWriter w(gguf, meta,
                 {{"a.weight.in_sum2", DType::f32, {2, 3}}, {"a.weight.counts", DType::f32, {2, 1}}});
    w.write(sums.data(), 24);
    w.write(counts.data(), 8);
    w.finish();
  }
  const Imatrix m = Imatrix::load(gguf);
  CHECK(m.chunks() == 3);
  CHECK(m.dataset() == "d.txt");
  const auto first = m.find("a.weight", 0, 2, 3), second = m.find("a.weight", 1, 2, 3);
  CHECK(std::vector(first.begin(), first.end()) == std::vector<float>{1, 2, 3});
  CHECK(std::vector(second.begin(), second.end()) == std::vector<float>{1, 1, 1});
  CHECK(m.find("b.weight", 0, 1, 3).empty());
  CHECK_THROWS_AS(m.find("a.weight", 0, 2, 4), Error);

  std::string bytes;
  const auto put = [&](const void* p, size_t n) { bytes.append(static_cast<const char*>(p), n); };
  const int32_t head[] = {1, 8}, entry[] = {2, 3}, tail[] = {7, 5};
  put(head, 8), put("a.weight", 8), put(entry, 8), put(sums.data(), 12), put(tail, 8), put("d.txt", 5);
  const auto write = [&](const std::string& s) {
    AtomicFile f(dat);
    f.write(s);
    f.commit();
  };
  write(bytes);
  const Imatrix old = Imatrix::load(dat);
  const auto w = old.find("a.weight", 1, 2, 3);
  CHECK(std::vector(w.begin(), w.end()) == std::vector<float>{1, 2, 3});
  CHECK(old.dataset() == "d.txt");
  for (size_t n = 0; n < bytes.size() - 13; ++n) {  // the data set's name may be absent
    write(bytes.substr(0, n));
    CHECK_THROWS_AS(Imatrix::load(dat), Error);
  }
  CHECK_THROWS_AS(Imatrix::load(tiny_model()), Error);
}

TEST_CASE("inspect: numbers of a known file") {
  const auto source = open_source(golden("gemma4_moe"));
  const auto json = inspect_json(*source);
  CHECK(json["tensors"].size() == source->tensors().size());
  CHECK(json["metadata"]["gemma4.expert_count"] == 16);
  CHECK(json["types"]["bf16"]["tensors"].get<int>() > 0);
  CHECK(json["bytes"].get<size_t>() == source->total_bytes());
  const auto tiny = inspect_json(*open_source(tiny_model()));
  CHECK(tiny["metadata"]["tokenizer.ggml.tokens"].size() == 768);
  const std::string text = inspect_text(*source);
  CHECK(text.find("blk.5.ffn_gate_up_exps.weight") != text.npos);
  CHECK(text.find("[16, 48, 64]") != text.npos);

  const std::string path = out_path("t.npy");
  const TensorInfo& t = source->get("blk.1.ffn_down_exps.weight");
  write_npy(tensor_values(source->path(), t.name), path);
  const std::string npy = read_file(path);
  const std::vector<float> y = values(t);
  CHECK(npy.find("'descr': '<f4', 'fortran_order': False, 'shape': (16, 64, 24)") != npy.npos);
  REQUIRE(npy.size() > y.size() * 4);
  CHECK((npy.size() - y.size() * 4) % 64 == 0);
  CHECK(std::memcmp(npy.data() + npy.size() - y.size() * 4, y.data(), y.size() * 4) == 0);
}

TEST_CASE("inspect --plan counts the cache as the engine will allocate it") {
  const auto source = open_source(tiny_model());
  const auto planned = [&](int32_t context, DType type, int32_t sequences) {
    PlanOptions o;
    o.engine.context = context, o.engine.sequences = sequences;
    o.engine.cache_k = o.engine.cache_v = type;
    return plan_memory(*source, o);
  };
  const MemoryPlan one = planned(4096, DType::f16, 1);
  CHECK(one.weights == static_cast<int64_t>(source->total_bytes()));
  // two global layers of one head of 128, f16: at least the context's positions
  CHECK(one.cache >= int64_t{4096} * 2 * 2 * 128 * 2);
  CHECK(planned(4096, DType::q8_0, 1).cache < one.cache * 0.55);
  CHECK(planned(4096, DType::f16, 4).cache > 3 * one.cache);
  CHECK(planned(0, DType::f16, 1).context == 8192);
}
