#include "apps/inspect.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/drafter.h"
#include "apps/npy.h"
#include "apps/progress.h"
#include "apps/step_memory.h"
#include "apps/towers.h"
#include "base/error.h"
#include "base/file.h"
#include "core/codec.h"
#include "engine/setup.h"
#include "model/files/gguf.h"
#include "model/files/safetensors.h"
#include "model/files/what_it_is.h"
#include "model/model.h"
#include "state/snapshot.h"

namespace carat {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMaxListed = 1024;  // entries of an array in JSON
constexpr int32_t kUsualContext = 8192;

struct ToJson {
  template <class T>
  Json operator()(const T& v) const {
    return v;
  }
  // Files may hold any bytes; JSON text may not.
  Json operator()(const std::string& v) const { return clean(v); }
  template <class T>
  Json operator()(const std::vector<T>& v) const {
    if (v.size() > kMaxListed) return Json{{"length", v.size()}};
    Json out = Json::array();
    for (size_t i = 0; i < v.size(); ++i) {
      if constexpr (std::is_same_v<T, std::string>) {
        out.push_back(clean(v[i]));
      } else {
        out.push_back(static_cast<T>(v[i]));
      }
    }
    return out;
  }
  static std::string clean(const std::string& v) {
    const std::string quoted = Json(v).dump(-1, ' ', false, Json::error_handler_t::replace);
    return Json::parse(quoted).get<std::string>();
  }
};

std::string shorten(std::string_view s, size_t n) {
  return s.size() <= n ? std::string(s) : std::string(s.substr(0, n - 3)) + "...";
}

struct ToText {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return fmt::format("{:g}", v); }
  std::string operator()(const std::string& v) const {
    return shorten(Json(v).dump(-1, ' ', true, Json::error_handler_t::replace), 80);
  }
  template <class T>
  std::string operator()(const std::vector<T>& v) const {
    std::string out;
    for (size_t i = 0; i < v.size() && out.size() < 60; ++i) {
      out += fmt::format("{}{}", i ? ", " : "", (*this)(static_cast<T>(v[i])));
    }
    return fmt::format("[{}] {}", v.size(), shorten(out, 64));
  }
};

std::map<DType, std::pair<int, size_t>> histogram(const WeightSource& source) {
  std::map<DType, std::pair<int, size_t>> out;
  for (const TensorInfo& t : source.tensors()) {
    ++out[t.type].first;
    out[t.type].second += t.bytes;
  }
  return out;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s;
  for (const int64_t d : shape) s += fmt::format("{}{}", s.empty() ? "" : ", ", d);
  return "[" + s + "]";
}

}  // namespace

int64_t parameter_count(const WeightSource& source) {
  int64_t n = 0;
  for (const TensorInfo& t : source.tensors())
    if (t.name != "rope_freqs.weight") n += t.elements();
  return n;
}

namespace {

bool speculates(const SpecFlags& f) {
  const std::vector<std::string> names = spec_types(f.types);
  if (names == std::vector<std::string>{"none"}) return false;
  return !names.empty() || !f.draft_model.empty() || !f.synthetic.empty();
}

// The cache of the model's own drafting head, if that drafts (set_up_speculation); from -1: none.
KvLayerSpec own_head_cache(const SpecFlags& f, const WeightSource& source) {
  const std::vector<std::string> names = spec_types(f.types);
  const auto named = [&](const char* n) { return std::find(names.begin(), names.end(), n) != names.end(); };
  const ModelFamily& family = find_family(source.meta().get_string("general.architecture"));
  if (!f.draft_model.empty() || !family.nextn_cache || (!named("mtp") && !named("auto"))) return {};
  const DType type = NextnDrafterOptions().cache;
  return family.nextn_cache(source, type, type);
}

// The cache of a drafter's file beside a target's; MTP assistants read their target's.
int64_t drafter_cache(const WeightSource& source, const KvLimits& target) {
  switch (drafter_kind(source)) {
    case DrafterKind::mtp: return 0;
    case DrafterKind::dflash: {
      const DFlashSpec spec = read_dflash_spec(source);
      return plan_kv(kv_layers(spec, DFlashOptions().cache), dflash_cache_limits(target, spec)).bytes();
    }
    case DrafterKind::head: {
      const DType type = NextnDrafterOptions().cache;
      const ModelFamily& family = find_family(source.meta().get_string("general.architecture"));
      const KvLayerSpec cache = family.nextn_cache(source, type, type);
      return plan_kv({&cache, 1}, nextn_cache_limits(target)).bytes();
    }
    case DrafterKind::none: break;
  }
  const ModelSpec spec = find_family(source.meta().get_string("general.architecture")).read_spec(source);
  const DType type = ModelDrafterOptions().cache;
  return plan_kv(kv_layers(spec, type, type), model_cache_limits(target)).bytes();
}

}  // namespace

namespace {

void plan_tower(const WeightSource& source, const ModelSpec& spec, const PlanOptions& o, int32_t step_rows,
                MemoryPlan& plan) {
  if (o.no_tower) return;
  const auto towers = open_towers(o.mmproj.empty() ? source.path() : o.mmproj);
  if (!towers) return;
  plan.tower_weights = tower_facts(*towers).bytes;
  plan.tower_rows = largest_picture(spec.blocks, step_rows);
  plan.tower_work = tower_work_bytes(*towers, plan.tower_rows);
}

}  // namespace

MemoryPlan plan_memory(const WeightSource& source, const PlanOptions& options) {
  require_model(source);
  MemoryPlan plan;
  plan.weights = static_cast<int64_t>(source.total_bytes());
  if (const Offload part = plan_offload(source, options.offload, options.room); !part.text.empty())
    plan.weights = part.device + part.come, plan.host_weights = part.host, plan.host_text = part.text;
  if (drafter_kind(source) != DrafterKind::none) {  // by itself: beside a target of this context
    plan.context = options.engine.context > 0 ? options.engine.context : kUsualContext;
    EngineConfig c = options.engine;
    c.context = plan.context;
    plan.cache = drafter_cache(source, limits_of(c, true));
    return plan;
  }
  const ModelSpec spec = find_family(source.meta().get_string("general.architecture")).read_spec(source);
  const bool drafts = speculates(options.spec);
  EngineConfig c = options.engine;
  c.spec = spec_config(options.spec, c.sequences);
  DeviceInfo device = options.device;
  device.mem_free = std::max<int64_t>(0, device.mem_free - plan.weights);
  c = resolve(std::move(c), spec, drafts, device, options.allowed);
  plan.context = c.context;
  plan.formats = formats_of(c);
  KvLimits limits = limits_of(c, drafts);
  const std::vector<KvLayerSpec> layers = kv_layers(spec, plan.formats);
  const KvPlan kv = plan_kv(layers, limits);
  plan.layers = kv.layers, plan.edges = kv.edges;
  plan.cache = kv.bytes();
  plan.prefixes = plan_kv(layers, pool_limits(c, spec, drafts)).bytes() - plan.cache;
  for (const KvPlan::Recurrent& r : kv.recurrent) plan.states += r.bytes();
  plan.saved = saved_bytes(kv, layers, limits, plan.context);
  if (!options.spec.draft_model.empty() && drafts) {
    const auto drafter = open_source(options.spec.draft_model);
    plan.drafter_weights = static_cast<int64_t>(drafter->total_bytes());
    plan.drafter_cache = drafter_cache(*drafter, limits);
  } else if (const KvLayerSpec cache = own_head_cache(options.spec, source); cache.from == 0) {
    plan.drafter_cache = plan_kv({&cache, 1}, nextn_cache_limits(limits)).bytes();
  }
  plan_tower(source, spec, options, c.prefill_chunk, plan);
  if (options.cpu_steps) {
    const StepMemory s = plan_steps(source.path(), plan.formats, limits, options.threads, options.isa);
    plan.weights = s.weights, plan.steps = s.steps;
  }
  ++limits.draft_rows;
  plan.draft_row = plan_kv(layers, limits).bytes() - plan.cache;
  return plan;
}

nlohmann::ordered_json inspect_json(const WeightSource& source) {
  Json out;
  out["path"] = ToJson::clean(source.path());
  out["format"] = std::string(source.format());
  out["parameters"] = parameter_count(source);
  out["bytes"] = source.total_bytes();
  out["skipped_tensors"] = source.skipped();
  if (const std::string summary = drafter_summary(source); !summary.empty())
    out["drafter"] = ToJson::clean(summary);
  if (const auto towers = tower_facts(source.path())) out["towers"] = towers_json(*towers);
  Json& meta = out["metadata"] = Json::object();
  for (const auto& [key, value] : source.meta().all()) meta[ToJson::clean(key)] = std::visit(ToJson(), value);
  Json& types = out["types"] = Json::object();
  for (const auto& [type, n] : histogram(source)) {
    types[std::string(info(type).name)] = {{"tensors", n.first}, {"bytes", n.second}};
  }
  Json& tensors = out["tensors"] = Json::array();
  for (const TensorInfo& t : source.tensors()) {
    tensors.push_back({{"name", ToJson::clean(t.name)},
                       {"type", std::string(info(t.type).name)},
                       {"shape", t.shape},
                       {"bytes", t.bytes}});
  }
  return out;
}

std::string inspect_text(const WeightSource& source) {
  std::string out = fmt::format("{} ({})\n\nmetadata\n", source.path(), source.format());
  for (const auto& [key, value] : source.meta().all()) {
    out += fmt::format("  {:44} {}\n", printable(key), std::visit(ToText(), value));
  }
  out += fmt::format("\ntensors (shape outermost first)\n");
  for (const TensorInfo& t : source.tensors()) {
    out += fmt::format("  {:44} {:8} {:24} {:>10}\n", printable(t.name), info(t.type).name,
                       shape_text(t.shape), human_bytes(static_cast<double>(t.bytes)));
  }
  out += "\ntypes\n";
  for (const auto& [type, n] : histogram(source)) {
    out += fmt::format("  {:8} {:5} tensors {:>10}\n", info(type).name, n.first,
                       human_bytes(static_cast<double>(n.second)));
  }
  out += fmt::format("\n{} tensors, {} parameters, {}\n", source.tensors().size(), parameter_count(source),
                     human_bytes(static_cast<double>(source.total_bytes())));
  if (const std::string summary = drafter_summary(source); !summary.empty()) out += summary + "\n";
  const auto towers = tower_facts(source.path());
  if (towers)
    out += towers_text(*towers);
  else if (source.skipped())
    out += fmt::format("{} tensors of vision or audio towers were passed over\n", source.skipped());
  return out;
}

TensorValues tensor_values(const std::string& file, const std::string& name) {
  if (std::filesystem::is_directory(file))  // of any model
    if (auto t = decode_checkpoint_tensor(file, name))
      return {std::move(t->shape), std::move(t->values), std::move(t->stored)};
  const auto source = open_source(file);
  const TensorInfo& found = source->get(name);
  const Tensor t = found.tensor();
  TensorValues out{found.shape, std::vector<float>(static_cast<size_t>(found.elements())),
                   std::string(info(t.type).name)};
  float* to = out.values.data();
  for (int64_t r = 0; r < int64_t{t.rows} * t.slices; ++r, to += t.cols)
    decode_row(t.type, t.data + r * t.pitch, to, t.cols);
  return out;
}

std::string tensor_text(const TensorValues& t, const std::string& name, bool json) {
  if (json)
    return Json{{"name", ToJson::clean(name)}, {"stored", t.stored}, {"shape", t.shape}, {"values", t.values}}
               .dump() +
           "\n";
  const auto [least, most] = std::minmax_element(t.values.begin(), t.values.end());
  double sum = 0, squares = 0;
  for (const float v : t.values) sum += v, squares += double{v} * v;
  const auto n = static_cast<double>(std::max<size_t>(1, t.values.size()));
  std::string out = fmt::format("{} {} {}\n", printable(name), shape_text(t.shape), t.stored);
  if (t.values.empty()) return out;
  out += fmt::format("least {:.9g}, largest {:.9g}, mean {:.6g}, root mean square {:.6g}\n", *least, *most,
                     sum / n, std::sqrt(squares / n));
  const size_t cols = t.shape.empty() ? 1 : static_cast<size_t>(t.shape.back());
  for (size_t r = 0; r < 4 && r * cols < t.values.size(); ++r) {
    for (size_t c = 0; c < 8 && c < cols; ++c) out += fmt::format(" {:>15.9g}", t.values[r * cols + c]);
    out += cols > 8 ? " ...\n" : "\n";
  }
  return out;
}

void write_npy(const TensorValues& t, const std::string& path) {
  NpyWriter file(path, t.shape);
  file.write(t.values);
  file.commit();
}

}  // namespace carat
