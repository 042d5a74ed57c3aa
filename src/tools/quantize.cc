#include "tools/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "model/files/safetensors.h"
#include "tools/parallel.h"
#include "tools/quantize_input.h"
#include "tools/quantize_plan.h"
#include "tools/quantize_rules.h"

namespace carat {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What the values count as.
DType type_of(const InTensor& t) {
  return t.dtype == "BF16" ? DType::bf16 : t.dtype == "F16" ? DType::f16 : DType::f32;
}

// The bytes of one module's parts, from its rows.
class Encoder {
 public:
  Encoder(QuantizeScheme scheme, const QuantizeOptions& o, int threads)
      : scheme_(scheme), o_(o), threads_(threads) {}

  std::vector<std::vector<std::byte>> encode(const OutModule& m, float global) const {
    std::vector<std::vector<std::byte>> out;
    for (const OutTensor& t : m.parts) out.emplace_back(t.bytes);
    const CheckpointFloat f{type_of(*m.from), o_.exact};
    if (scheme_ == QuantizeScheme::nvfp4) std::memcpy(out[2].data(), &global, 4);
    if (scheme_ == QuantizeScheme::w4a16) {
      const int64_t shape[2] = {m.rows, m.cols};
      std::memcpy(out[2].data(), shape, 16);
    }
    const int64_t step = 128;  // rows of a block, and a thread's share
    parallel_for(threads_, (m.rows + step - 1) / step, [&](int64_t piece) {
      const int64_t first = piece * step, n = std::min(step, m.rows - first);
      std::vector<float> x(static_cast<size_t>(n * m.cols));
      read(m, first, n, x.data());
      if (scheme_ == QuantizeScheme::fp8_block) return blocks(m, f, x.data(), piece, n, out);
      for (int64_t r = 0; r < n; ++r) row(m, f, x.data() + r * m.cols, first + r, global, out);
    });
    return out;
  }

  // A tensor that stays: its bytes, or its values in the type that they count as.
  void copy(const InTensor& t, AtomicFile& file) const {
    const DType type = type_of(t);
    const bool is_float = t.dtype == "BF16" || t.dtype == "F16" || t.dtype == "F32";
    if (!is_float || t.stored == type) return file.write(t.data, t.bytes);
    const int64_t cols = t.shape.empty() ? 1 : t.shape.back();
    const int64_t rows = static_cast<int64_t>(t.bytes) / row_bytes(t.stored, cols);
    constexpr int64_t kRows = 4096;
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t n = std::min(kRows, rows - first);
      std::vector<std::byte> out(static_cast<size_t>(n * row_bytes(type, cols)));
      parallel_for(threads_, (n + 63) / 64, [&](int64_t piece) {
        std::vector<float> x(static_cast<size_t>(cols));
        for (int64_t r = piece * 64; r < std::min(n, piece * 64 + 64); ++r) {
          decode_row(t.stored, t.data + (first + r) * row_bytes(t.stored, cols), x.data(), cols);
          encode_row(type, x.data(), out.data() + r * row_bytes(type, cols), cols);
        }
      });
      file.write(out.data(), out.size());
    }
  }

  float amax(const OutModule& m) const {
    std::vector<float> most(static_cast<size_t>(m.rows));
    parallel_for(threads_, (m.rows + 63) / 64, [&](int64_t piece) {
      std::vector<float> x(static_cast<size_t>(m.cols));
      for (int64_t r = piece * 64; r < std::min(m.rows, piece * 64 + 64); ++r) {
        read(m, r, 1, x.data());
        most[static_cast<size_t>(r)] = largest(x.data(), m.cols);
      }
    });
    return *std::max_element(most.begin(), most.end());
  }

 private:
  void read(const OutModule& m, int64_t first, int64_t n, float* x) const {
    const DType stored = m.from->stored;
    decode_row(stored, m.from->data + (m.first + first) * row_bytes(stored, m.cols), x, n * m.cols);
    const CheckpointFloat as{type_of(*m.from)};
    if (info(stored).elems > 1)
      for (int64_t i = 0; i < n * m.cols; ++i) x[i] = as.round(x[i]);
    for (int64_t i = 0; i < n * m.cols; ++i)
      if (!std::isfinite(x[i]))
        throw Error(fmt::format("'{}' holds a value that is not finite", m.name),
                    "the source weights are damaged");
  }
  static void put_scale(std::vector<std::byte>& to, int64_t i, float s, DType type) {
    std::byte* p = to.data() + i * info(type).bytes;
    const uint16_t h = type == DType::bf16 ? f32_to_bf16(s) : f32_to_f16(s);
    type == DType::f32 ? std::memcpy(p, &s, 4) : std::memcpy(p, &h, 2);
  }

  void row(const OutModule& m, const CheckpointFloat& f, const float* x, int64_t r, float global,
           std::vector<std::vector<std::byte>>& out) const {
    const int64_t cols = m.cols;
    if (scheme_ == QuantizeScheme::fp8_dynamic) {
      const float s = fp8_scale(largest(x, cols), f);
      put_scale(out[1], r, s, f.type);
      return fp8_codes(x, cols, s, f, reinterpret_cast<uint8_t*>(out[0].data()) + r * cols);
    }
    const int64_t group = scheme_ == QuantizeScheme::nvfp4 ? 16 : o_.group;
    std::vector<uint8_t> codes(static_cast<size_t>(cols));
    for (int64_t c = 0; c < cols; c += group) {
      const float most = largest(x + c, group);
      const int64_t at = (r * cols + c) / group;
      if (scheme_ == QuantizeScheme::nvfp4) {
        const uint8_t s = nvfp4_scale(most, global, f);
        out[1][static_cast<size_t>(at)] = static_cast<std::byte>(s);
        nvfp4_codes(x + c, global, s, codes.data() + c);
      } else {
        const float s = int4_scale(most, f);
        put_scale(out[1], at, s, f.type);
        int4_codes(x + c, group, s, f, codes.data() + c);
      }
    }
    for (int64_t c = 0; c < cols; c += 2)  // in both schemes the first of two codes is in the low nibble
      out[0][static_cast<size_t>((r * cols + c) / 2)] =
          static_cast<std::byte>(codes[static_cast<size_t>(c)] | codes[static_cast<size_t>(c + 1)] << 4);
  }

  static void blocks(const OutModule& m, const CheckpointFloat& f, const float* x, int64_t down, int64_t rows,
                     std::vector<std::vector<std::byte>>& out) {
    const int64_t across = (m.cols + 127) / 128;
    for (int64_t b = 0; b < across; ++b) {
      const int64_t c = b * 128, n = std::min<int64_t>(128, m.cols - c);
      float most = 0;
      for (int64_t r = 0; r < rows; ++r) most = std::max(most, largest(x + r * m.cols + c, n));
      const float s = fp8_scale(most, f);
      put_scale(out[1], down * across + b, s, f.type);
      for (int64_t r = 0; r < rows; ++r)
        fp8_codes(x + r * m.cols + c, n, s, f,
                  reinterpret_cast<uint8_t*>(out[0].data()) + (down * 128 + r) * m.cols + c);
    }
  }

  QuantizeScheme scheme_;
  const QuantizeOptions& o_;
  int threads_;
};

std::string header(const OutShard& s) {
  std::vector<const OutTensor*> order;
  for (const OutModule& m : s.modules)
    for (const OutTensor& t : m.parts) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  Json j = {{"__metadata__", {{"format", "pt"}}}};
  for (const OutTensor* t : order)
    j[t->name] = {
        {"dtype", t->dtype}, {"shape", t->shape}, {"data_offsets", {t->offset, t->offset + t->bytes}}};
  std::string text = j.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t n = text.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + text;
}

class Quantizer {
 public:
  using Progress = std::function<void(double, double, std::string_view)>;
  Quantizer(const QuantizeOptions& o, QuantizeScheme scheme, const Progress& progress)
      : o_(o), scheme_(scheme), progress_(progress), encoder_(scheme, o, tool_threads(o.threads)) {}

  QuantizeResult run() {
    if (fs::exists(fs::symlink_status(o_.out)))
      throw Error(fmt::format("'{}' is there already", o_.out), "give the name of a new directory");
    in_ = open_quantize_input(o_.in);
    plan_ = plan_quantize(o_, scheme_, in_.tensors);
    if (plan_.counts.quantized == 0)
      throw Error(fmt::format("no linear layer of '{}' is left to quantize", o_.in), "look at --ignore");
    for (const OutShard& s : plan_.shards)
      for (const OutModule& m : s.modules)
        if (m.quantized) fused_[m.fused].push_back(&m);
    begin();
    try {
      for (const OutShard& s : plan_.shards) write(s);
      write_texts();
      fs::remove(partial_ / kManifest);
      fs::rename(partial_, o_.out);
    } catch (...) {
      std::error_code ec;
      if (!worth_keeping()) fs::remove_all(partial_, ec);
      throw;
    }
    return plan_.counts;
  }

 private:
  static constexpr const char* kManifest = "carat-quantize.json";

  bool worth_keeping() const {  // a shard is done, with which the same command goes on
    std::error_code ec;
    return std::any_of(plan_.shards.begin(), plan_.shards.end(),
                       [&](const OutShard& s) { return fs::exists(partial_ / s.file, ec); });
  }

  // Links there could lead into the input: what this program wrote are directories and files.
  void refuse_links() const {
    const auto refuse = [](const fs::path& p) {
      throw Error(fmt::format("'{}' is there, and not a quantizer's work", p.string()), "move it away");
    };
    if (!fs::is_directory(fs::symlink_status(partial_))) refuse(partial_);
    for (const auto& entry : fs::directory_iterator(partial_))
      if (entry.is_symlink()) refuse(entry.path());
  }

  // The place of work: empty, or what the same command has left there.
  void begin() {
    std::string out = o_.out;
    while (out.size() > 1 && out.back() == '/') out.pop_back();
    partial_ = out + ".partial";
    Json mark = {{"type", o_.type},         {"exact", o_.exact},      {"group", o_.group},
                 {"shard", o_.shard_bytes}, {"ignore", plan_.ignore}, {"from", Json::parse(in_.identity)}};
    const std::string text = mark.dump();
    if (fs::exists(fs::symlink_status(partial_))) {
      std::error_code ec;
      if (fs::equivalent(partial_, o_.in, ec))
        throw Error(fmt::format("'{}' is the input, and the place of work for '{}'", o_.in, o_.out),
                    "give another name for the output");
      refuse_links();
      const fs::path manifest = partial_ / kManifest;
      if (!fs::exists(manifest))
        throw Error(fmt::format("'{}' is there, and not a quantizer's work", partial_.string()),
                    "move it away");
      if (read_file(manifest.string()) == text) return;
      fs::remove_all(partial_);
    }
    fs::create_directories(partial_);
    put(kManifest, text);
  }
  void put(const std::string& name, std::string_view text) const {
    AtomicFile f((partial_ / name).string());
    f.write(text);
    f.commit();
  }

  float global_of(const OutModule& m) {
    if (scheme_ != QuantizeScheme::nvfp4) return 1;
    if (const auto it = globals_.find(m.fused); it != globals_.end()) return it->second;
    float most = 0;
    for (const OutModule* part : fused_.at(m.fused)) most = std::max(most, encoder_.amax(*part));
    return globals_[m.fused] = nvfp4_global(most, {type_of(*m.from), o_.exact});
  }

  void write(const OutShard& s) {
    const fs::path path = partial_ / s.file;
    if (fs::exists(path)) {
      ++plan_.counts.resumed;
      done_ += static_cast<double>(s.bytes);
      return;
    }
    AtomicFile file(path.string());
    const std::string head = header(s);
    file.write(head);
    for (const OutModule& m : s.modules) {
      if (m.quantized) {
        const auto parts = encoder_.encode(m, global_of(m));
        for (size_t i = 0; i < parts.size(); ++i) {
          file.seek(head.size() + m.parts[i].offset);
          file.write(parts[i].data(), parts[i].size());
        }
      } else {
        file.seek(head.size() + m.parts[0].offset);
        encoder_.copy(*m.from, file);
      }
      release_mapped(m.from->data, m.from->bytes);
      for (const OutTensor& t : m.parts) done_ += static_cast<double>(t.bytes);
      if (progress_) progress_(done_, static_cast<double>(plan_.counts.bytes_out), m.name);
    }
    file.commit();
  }

  void write_texts() const {
    std::map<std::string, std::string> texts = texts_of(in_, o_.in);
    for (const auto& [name, text] : texts)
      if (name != "config.json") put(name, text);
    Json config = Json::parse(texts["config.json"], nullptr, false);
    if (!config.is_object()) throw Error(fmt::format("'{}/config.json' is not a JSON object", o_.in));
    if (const auto text = config.find("text_config"); text != config.end() && text->is_object())
      text->erase("quantization_config");
    config["quantization_config"] = Json::parse(quantization_config(o_, scheme_, plan_.ignore));
    put("config.json", config.dump(2) + "\n");
    if (plan_.shards.size() == 1) return;
    Json index = {{"metadata", {{"total_size", plan_.counts.bytes_out}}}, {"weight_map", Json::object()}};
    std::map<std::string, std::string> map;
    for (const OutShard& s : plan_.shards)
      for (const OutModule& m : s.modules)
        for (const OutTensor& t : m.parts) map[t.name] = s.file;
    for (const auto& [tensor, file] : map) index["weight_map"][tensor] = file;
    put("model.safetensors.index.json", index.dump(2) + "\n");
  }

  const QuantizeOptions& o_;
  QuantizeScheme scheme_;
  const Progress& progress_;
  Encoder encoder_;
  QuantizeInput in_;
  QuantizePlan plan_;
  std::map<std::string, std::vector<const OutModule*>> fused_;
  std::map<std::string, float> globals_;
  fs::path partial_;
  double done_ = 0;
};

}  // namespace

QuantizeResult quantize(const QuantizeOptions& options,
                        const std::function<void(double, double, std::string_view)>& progress) {
  const auto scheme = quantize_scheme(options.type);
  if (!scheme)
    throw Error(fmt::format("unknown type '{}'", options.type), "known types: " + quantize_types());
  if (options.group < 8 || options.group % 8)
    throw Error(fmt::format("groups of {} columns", options.group), "a multiple of 8, usually 32 or 128");
  return Quantizer(options, *scheme, progress).run();
}

}  // namespace carat
