// convert and what it is given: it takes nothing from its input, and says by name what is no model.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "model/files/gguf.h"
#include "model/files/gguf_writer.h"
#include "tests/errors.h"
#include "tests/tiny_model.h"
#include "tools/convert.h"
#include "tools/type_mix.h"

using namespace carat;
using namespace carat::test;
namespace fs = std::filesystem;

namespace {

std::string golden(std::string_view rest) { return fmt::format("{}/goldens/{}", CARAT_TEST_DATA, rest); }
std::string out_path(std::string_view name) { return fmt::format("{}/{}", test_directory(), name); }

void write_file(const std::string& path, std::string_view text) {
  AtomicFile f(path);
  f.write(text);
  f.commit();
}
// A tiny model in two parts.
std::vector<std::string> write_split(const std::string& dir) {
  const auto tiny = open_source(tiny_model());
  const auto all = tiny->tensors();
  std::vector<std::string> paths;
  for (int64_t no = 0; no < 2; ++no) {
    const auto part = no == 0 ? all.first(all.size() / 2) : all.subspan(all.size() / 2);
    Metadata meta;
    if (no == 0)
      for (const auto& [key, value] : tiny->meta().all()) meta.set(key, value);
    meta.set("split.no", no);
    meta.set("split.count", int64_t{2});
    std::vector<GgufTensor> tensors;
    for (const TensorInfo& t : part) tensors.push_back({t.name, t.type, t.shape});
    paths.push_back(gguf_part_path(dir + "/m", no, 2));
    GgufWriter w(paths.back(), meta, tensors);
    for (const TensorInfo& t : part) w.write(t.data, t.bytes);
    w.finish();
  }
  return paths;
}

}  // namespace

TEST_CASE("convert takes nothing from its input, by whatever name OUT leads there") {
  const std::string dir = out_path("apart");
  fs::create_directories(dir);
  const std::string source = dir + "/in.gguf", hf = dir + "/hf";
  fs::copy_file(tiny_model(), source);
  fs::copy(golden("gemma4_dense"), hf);
  write_file(hf + "/tokenizer.json", "{}");
  fs::create_hard_link(source, dir + "/hard.gguf");
  fs::create_symlink("hard.gguf", dir + "/soft.gguf");
  fs::create_symlink(hf + "/model.safetensors", dir + "/shard.gguf");
  write_file(dir + "/i.dat", std::string(8, '\0'));
  const std::string before = read_file(source), weights = read_file(hf + "/model.safetensors");
  const auto refused = [](const ConvertOptions& o) {
    CAPTURE(o.out);
    const std::string what = error_of([&] { convert(o); });
    CHECK(what.find("belongs to the input") != what.npos);
  };
  for (const char* out : {"/in.gguf", "/hard.gguf", "/soft.gguf", "/hf/../in.gguf"})
    refused({.in = source, .out = dir + out, .type = "q8_0"});
  for (const char* out : {"/shard.gguf", "/hf/model.safetensors", "/hf/config.json", "/hf/tokenizer.json"})
    refused({.in = hf, .out = dir + out, .type = "q8_0"});
  refused({.in = source, .out = dir + "/i.dat", .type = "q8_0", .imatrix = dir + "/i.dat"});
  CHECK(read_file(source) == before);
  CHECK(read_file(hf + "/model.safetensors") == weights);
  CHECK(::mkfifo((dir + "/fifo").c_str(), 0600) == 0);
  CHECK_THROWS_AS(convert({.in = source, .out = dir + "/fifo", .type = "q8_0"}), WriteError);
  CHECK(fs::is_fifo(dir + "/fifo"));
  convert(
      {.in = source, .out = hf + "/new.gguf", .type = "q8_0", .threads = 1});  // a result of before is none
  convert({.in = source, .out = hf + "/new.gguf", .type = "q8_0", .threads = 1});
  fs::remove_all(dir);
}

TEST_CASE("the parts of a split file are its input, too") {
  const std::string dir = out_path("parts");
  fs::create_directories(dir);
  const std::vector<std::string> parts = write_split(dir);
  for (const std::string& part : parts) {
    const std::string before = read_file(part);
    CHECK_THROWS_AS(convert({.in = parts[0], .out = part, .type = "q8_0"}), Error);
    CHECK(read_file(part) == before);
  }
  fs::remove_all(dir);
}

TEST_CASE("towers stay out of a text model's file; every listed type can be written") {
  const std::string source = out_path("tower.gguf"), path = out_path("text.gguf");
  {
    const auto tiny = open_source(tiny_model());
    Metadata meta;
    for (const auto& [key, value] : tiny->meta().all()) meta.set(key, value);
    meta.set("clip.has_vision_encoder", true);
    std::vector<GgufTensor> tensors;
    for (const TensorInfo& t : tiny->tensors()) tensors.push_back({t.name, t.type, t.shape});
    for (const char* name : {"v.blk.0.attn_q.weight", "mm.input_projection.weight", "a.conv1d.0.weight"})
      tensors.push_back({name, DType::f32, {2, 32}});
    GgufWriter w(source, meta, tensors);
    for (const TensorInfo& t : tiny->tensors()) w.write(t.data, t.bytes);
    const std::vector<float> zeros(3 * 64);
    w.write(zeros.data(), 256), w.write(zeros.data(), 256), w.write(zeros.data(), 256);
    w.finish();
  }
  std::string types = recipe_names();
  for (size_t at = 0; at < types.size();) {
    const size_t end = std::min(types.find(' ', at), types.size());
    const std::string type = types.substr(at, end - at);
    CAPTURE(type);
    const ConvertResult r = convert({.in = source, .out = path, .type = type, .threads = 1});
    CHECK(r.skipped == 3);
    const auto text = open_source(path);
    for (const TensorInfo& t : text->tensors()) CHECK_FALSE(t.name.starts_with("v."));
    CHECK(text->tensors().size() + 3 == open_source(source)->tensors().size());
    CHECK_FALSE(text->meta().find("clip.has_vision_encoder"));
    at = end + 1;
  }
}

TEST_CASE("files and folders that are no models are said by name, with where they belong") {
  const std::string dir = out_path("other");
  fs::create_directories(dir);
  const auto file = [&](const char* key, const char* word) {
    Metadata meta;
    meta.set(key, std::string(word));
    if (std::string_view(key) == "general.type") meta.set("general.architecture", std::string("gemma4"));
    const std::string path = dir + "/x.gguf";
    GgufWriter w(path, meta, {{"t", DType::f32, {32}}});
    const std::vector<float> zeros(32);
    w.write(zeros.data(), 128);
    w.finish();
    return path;
  };
  const auto said = [&](const std::string& path, std::string_view what, std::string_view hint) {
    CAPTURE(path);
    CAPTURE(what);
    std::string message, advice;
    try {
      convert({.in = path, .out = out_path("none.gguf"), .type = "q8_0"});
    } catch (const Error& e) {
      message = e.what(), advice = e.hint();
    }
    CHECK_MESSAGE(message.find(what) != message.npos, message);
    CHECK_MESSAGE(advice.find(hint) != advice.npos, advice);
  };
  said(file("general.architecture", "clip"), "mmproj", "model's own file");
  said(file("general.type", "adapter"), "LoRA", "merge");
  said(file("general.type", "imatrix"), "importance matrix", "--imatrix");
  said("gemma4:26b", "no file", "Ollama");
  fs::remove_all(dir);
  fs::create_directories(dir + "/snapshots/abc");
  fs::create_directories(dir + "/refs");
  write_file(dir + "/refs/main", "abc\n");
  said(dir, "hub's cache", "snapshots/abc'");
  fs::copy_file(tiny_model(), dir + "/snapshots/abc/m-00001-of-00002.gguf");
  said(dir, "hub's cache", "m-00001-of-00002.gguf'");
  said(dir + "/snapshots/abc", "directory of GGUF files", "m-00001-of-00002.gguf'");
  write_file(dir + "/snapshots/abc/config.json", R"({"model_type": "gemma4_text"})");
  fs::copy_file(golden("gemma4_dense/config.json"), dir + "/snapshots/abc/config.json",
                fs::copy_options::overwrite_existing);
  said(dir + "/snapshots/abc", "neither model.safetensors", "m-00001-of-00002.gguf'");
  write_file(dir + "/snapshots/abc/config.json", "version https://git-lfs.github.com/spec/v1\n");
  said(dir + "/snapshots/abc", "Git LFS", "git lfs pull");
  fs::remove_all(dir);
  fs::create_directories(dir);
  write_file(dir + "/adapter_config.json", "{}");
  said(dir, "LoRA", "merge");
  fs::remove_all(dir);
  fs::create_directories(dir + "/sub");
  write_file(dir + "/sub/config.json", "{}");
  said(dir, "no config.json", "sub'");
  fs::remove_all(dir);
}
