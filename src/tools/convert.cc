#include "tools/convert.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "core/codec.h"
#include "model/files/gguf_writer.h"
#include "model/files/what_it_is.h"
#include "tools/imatrix.h"
#include "tools/parallel.h"
#include "tools/type_mix.h"
#include "tools/vocab.h"

namespace carat {
namespace {

constexpr int64_t kSlabElements = int64_t{1} << 24;   // converted and written at a time: 64 MB as f32
constexpr int64_t kPieceElements = int64_t{1} << 17;  // one thread's share

bool plain_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

MixModel mix_model(const WeightSource& source, bool has_imatrix) {
  const Metadata& meta = source.meta();
  const std::string arch = meta.get_string("general.architecture") + ".";
  MixModel m;
  const int64_t layers = meta.get_int(arch + "block_count");
  if (layers < 1 || layers > 65536) throw Error(fmt::format("'{}' claims {} layers", source.path(), layers));
  m.layers = static_cast<int>(layers);
  for (const TensorInfo& t : source.tensors()) m.values += t.name.ends_with(".attn_v.weight");
  m.has_output = source.find("output.weight") != nullptr;
  m.has_imatrix = has_imatrix;
  const auto heads = meta.get_ints_per_layer(arch + "attention.head_count", static_cast<size_t>(m.layers));
  const auto kv = meta.get_ints_per_layer(arch + "attention.head_count_kv", static_cast<size_t>(m.layers));
  const int64_t most = std::max<int64_t>(*std::max_element(kv.begin(), kv.end()), 1);
  m.query_group = static_cast<int>(std::clamp<int64_t>(heads[0] / most, 1, 65536));
  return m;
}

// As `= value`, which crashes in libstdc++ 12 where memory is too short for the copy.
MetaValue copy_of(const MetaValue& value) {
  return std::visit([](const auto& v) { return MetaValue(v); }, value);
}

Metadata output_metadata(const WeightSource& source, const Recipe& recipe, bool with_tokenizer) {
  Metadata meta;
  for (const auto& [key, value] : source.meta().all())
    if (!key.starts_with("clip.")) meta.set(key, copy_of(value));
  meta.set("general.file_type", int64_t{recipe.file_type});
  meta.set("general.quantization_version", int64_t{2});
  if (with_tokenizer && !meta.find("tokenizer.ggml.tokens"))
    tokenizer_to_metadata(tokenizer_from_source(source), meta);
  const TensorInfo* table = source.find("token_embd.weight");
  const int64_t rows = table && table->shape.size() == 2 ? table->shape[0] : 0;
  if (!meta.find("tokenizer.ggml.model")) {  // other readers want a word about it
    meta.set("tokenizer.ggml.model", "none");
    if (rows) meta.set(source.meta().get_string("general.architecture") + ".vocab_size", rows);
  }
  if (rows) fit_vocabulary(meta, rows);
  if (const auto* templates = meta.find_strings("tokenizer.chat_template"); templates && !templates->empty())
    meta.set("tokenizer.chat_template", std::string(templates->front()));
  return meta;
}

// Vision and audio towers and what leads from them to the text: a text model's file has none, and other
// readers refuse one that has.
bool is_tower(std::string_view name) {
  return name.starts_with("v.") || name.starts_with("a.") || name.starts_with("mm.");
}

// What the output holds, in the order of the input.
std::vector<GgufTensor> plan(const WeightSource& source, const Recipe& recipe, bool has_imatrix) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : source.tensors())
    if (!is_tower(t.name)) order.push_back(&t);
  // layers in order, whatever the order of the shards: the recipes count
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return layer_of(a->name) < layer_of(b->name); });
  TypeMix mix(recipe, mix_model(source, has_imatrix));
  std::vector<GgufTensor> out;
  for (const TensorInfo* t : order) {
    DType type = mix.type_of(t->name, t->shape).value_or(t->type);
    if (t->name.ends_with("ffn_gate_inp.weight") && plain_float(t->type)) type = DType::f32;
    if (type != t->type && !can_encode(type)) {
      throw Error(fmt::format("cannot write weights as {}", info(type).name), "choose another --type");
    }
    out.push_back({t->name, type, t->shape});
  }
  return out;
}

// Writing OUT must take nothing from the input: not a part or a shard of it, by whatever name or link, nor
// another file of its directory (GGUF files there are no input).
void require_apart(const ConvertOptions& o) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::exists(o.out, ec)) return;
  const auto same = [&](const fs::path& p) { return fs::equivalent(p, o.out, ec) && !ec; };
  bool taken = is_mapped_file(o.out) || same(o.in) || (!o.imatrix.empty() && same(o.imatrix));
  for (fs::directory_iterator i(o.in, ec), end; !ec && i != end; i.increment(ec)) {
    std::error_code other;
    taken |= i->path().extension() != ".gguf" && fs::equivalent(i->path(), o.out, other) && !other;
  }
  if (taken)
    throw Error(fmt::format("'{}' belongs to the input", o.out),
                "give the name of a new file; nothing was written");
}

class Converter {
 public:
  Converter(GgufWriter& writer, const Imatrix* imatrix, int threads)
      : writer_(writer), imatrix_(imatrix), threads_(threads) {}

  template <class F>
  void tensor(const TensorInfo& in, DType type, F&& tick) {
    if (in.type == type) return copy(in, tick);
    const Tensor t = in.tensor();
    const int64_t rows = int64_t{t.rows} * t.slices, cols = t.cols;
    const int64_t per_slab = std::clamp<int64_t>(kSlabElements / cols, 1, rows);
    const int64_t per_piece = std::clamp<int64_t>(kPieceElements / cols, 1, per_slab);
    const auto out_row = static_cast<size_t>(row_bytes(type, cols));
    std::vector<std::byte> slab(static_cast<size_t>(per_slab) * out_row);
    for (int64_t first = 0; first < rows; first += per_slab) {
      const int64_t n = std::min(per_slab, rows - first);
      parallel_for(threads_, (n + per_piece - 1) / per_piece, [&](int64_t piece) {
        std::vector<float> x(static_cast<size_t>(cols));
        for (int64_t r = piece * per_piece; r < std::min(n, (piece + 1) * per_piece); ++r) {
          const int64_t row = first + r;
          decode_row(in.type, t.data + row * t.pitch, x.data(), cols);
          const auto w =
              imatrix_ ? imatrix_->find(in.name, row / t.rows, t.slices, cols) : std::span<const float>();
          encode_row(type, x.data(), slab.data() + static_cast<size_t>(r) * out_row, cols, w);
        }
      });
      writer_.write(slab.data(), static_cast<size_t>(n) * out_row);
      tick();
    }
  }

 private:
  template <class F>
  void copy(const TensorInfo& in, F&& tick) {
    constexpr size_t kPiece = size_t{16} << 20;
    for (size_t at = 0; at < in.bytes; at += kPiece) {
      writer_.write(in.data + at, std::min(kPiece, in.bytes - at));
      tick();
    }
  }
  GgufWriter& writer_;
  const Imatrix* imatrix_;
  int threads_;
};

struct TowerType {
  std::string_view name;
  DType type;
  int64_t file_type;
};
constexpr TowerType kTowerTypes[] = {
    {"f32", DType::f32, 0}, {"f16", DType::f16, 1}, {"bf16", DType::bf16, 32}, {"q8_0", DType::q8_0, 7}};

// What is no product stays exact, as other programs expect it: norms, limits, tables, patches, and all of
// the convolutions for sound.
DType tower_type(const TensorInfo& t, DType wanted) {
  const bool conv = t.name.starts_with("a.") && t.name.find("conv") != std::string::npos;
  if (t.shape.size() != 2 || conv) return DType::f32;
  return t.shape[1] % info(wanted).elems ? DType::f16 : wanted;
}

using OnProgress = std::function<void(double, double, std::string_view)>;
ConvertResult convert_towers(const ConvertOptions& options, const OnProgress& progress) {
  const auto source = open_towers(options.in);
  if (!source)
    throw Error(fmt::format("'{}' holds no towers that are known", options.in),
                "give the directory of a model that sees");
  require_apart(options);
  const auto chosen = std::find_if(std::begin(kTowerTypes), std::end(kTowerTypes),
                                   [&](const TowerType& t) { return t.name == options.type; });
  if (chosen == std::end(kTowerTypes))
    throw Error(fmt::format("towers cannot be written as {}", options.type), "known: bf16, f16, f32, q8_0");
  Metadata meta;
  for (const auto& [key, value] : source->meta().all()) meta.set(key, copy_of(value));
  meta.set("general.type", std::string("mmproj"));
  meta.set("general.file_type", chosen->file_type);
  meta.set("general.quantization_version", int64_t{2});
  std::vector<GgufTensor> tensors;
  for (const TensorInfo& t : source->tensors())
    tensors.push_back(
        {t.name, tower_type(t, chosen->type), t.shape.empty() ? std::vector<int64_t>{1} : t.shape});
  ConvertResult result;
  result.has_tokenizer = true;  // it needs none
  result.bytes_in = source->total_bytes();
  GgufWriter writer(options.out, meta, tensors);
  Converter converter(writer, nullptr, tool_threads(options.threads));
  for (const GgufTensor& t : tensors)
    converter.tensor(source->get(t.name), t.type, [&] {
      if (progress)
        progress(static_cast<double>(writer.written()), static_cast<double>(writer.total_bytes()), t.name);
    });
  writer.finish();
  result.tensors = tensors.size();
  result.bytes_out = writer.total_bytes();
  return result;
}

}  // namespace

ConvertResult convert(const ConvertOptions& options,
                      const std::function<void(double, double, std::string_view)>& progress) {
  if (options.towers) return convert_towers(options, progress);
  const Recipe* recipe = find_recipe(options.type);
  if (!recipe) throw Error(fmt::format("unknown type '{}'", options.type), "known types: " + recipe_names());
  const auto source = open_source(options.in);
  require_model(*source);
  require_apart(options);
  std::optional<Imatrix> imatrix;
  if (!options.imatrix.empty()) imatrix = Imatrix::load(options.imatrix);
  ConvertResult result;
  result.has_tokenizer = has_tokenizer(*source);
  result.skipped = source->skipped();
  for (const TensorInfo& t : source->tensors()) result.skipped += is_tower(t.name);
  result.bytes_in = source->total_bytes();
  Metadata meta = output_metadata(*source, *recipe, result.has_tokenizer);
  if (imatrix) {
    meta.set("quantize.imatrix.file", std::filesystem::path(options.imatrix).filename().string());
    meta.set("quantize.imatrix.dataset", imatrix->dataset());
    meta.set("quantize.imatrix.entries_count", static_cast<int64_t>(imatrix->entries()));
    meta.set("quantize.imatrix.chunks_count", imatrix->chunks());
  }
  const std::vector<GgufTensor> tensors = plan(*source, *recipe, imatrix.has_value());
  GgufWriter writer(options.out, meta, tensors);
  Converter converter(writer, imatrix ? &*imatrix : nullptr, tool_threads(options.threads));
  for (const GgufTensor& t : tensors) {
    converter.tensor(source->get(t.name), t.type, [&] {
      if (progress)
        progress(static_cast<double>(writer.written()), static_cast<double>(writer.total_bytes()), t.name);
    });
  }
  writer.finish();
  result.tensors = tensors.size();
  result.bytes_out = writer.total_bytes();
  return result;
}

}  // namespace carat
