#include "apps/open.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/progress.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "core/kv_codec.h"
#include "cpu/ceiling.h"
#include "cuda/cuda.h"
#include "engine/setup.h"
#include "tools/load_as.h"
#include "tools/vocab.h"

namespace carat {

void add_open_flags(CLI::App& app, OpenOptions& o) {
  app.add_option("-m,--model", o.model,
                 "Model: a .gguf file, or a directory with config.json and *.safetensors")
      ->required();
  app.add_option("-t,--threads", o.threads, "Threads (0: as many as this machine allows)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--numa", o.numa,
                 "On a machine with memory of their own by socket, distribute: spread fewer threads than "
                 "processors over all of them; isolate: use the one that this starts on; numactl: use what "
                 "numactl gives")
      ->check(CLI::IsMember({"distribute", "isolate", "numactl"}));
  app.add_option("--isa", o.isa, "Use this instruction set of the CPU (default: the best that it has)")
      ->check(CLI::IsMember({"baseline", "neon", "i8mm", "avx2", "avx512", "amx"}));
  app.add_option(
         "--device", o.device,
         "Device: cpu, cuda or cuda:N, several like cuda:0,cuda:1; auto: the first GPU, all GPUs, or one "
         "GPU together with the CPU, whichever the model fits into")
      ->capture_default_str();
  app.add_option("--gpu-memory-utilization", o.gpu_memory, "Share of the GPU's memory that may be used")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--gpu-memory-limit", o.gpu_memory_limit,
                 "Use the GPU as if it had this much memory, e.g. 24GiB; what other programs use counts")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  app.add_option("--cuda-graphs", o.cuda_graphs,
                 "on: record a GPU's steps as CUDA graphs and replay them; off: launch each kernel")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option(
         "--load-as", o.load_as,
         "fp8: convert the layers' matrices of 16 and 32 bits to FP8 while loading (quantized ones stay)")
      ->check(CLI::IsMember({"fp8"}));
  app.add_option("--activations", o.activations,
                 "fp8: products with FP8 weights round their activations to FP8, too, each row with its own "
                 "scale (W8A8, as vLLM runs FP8-Dynamic): faster prompts, less exact; those with MXFP4 and "
                 "NVFP4 weights round theirs with a scale for 32 columns, for the FP8 tensor cores of RTX 50 "
                 "and GB10")
      ->check(CLI::IsMember({"fp8"}));
  add_rope_flags(app, o.rope);
  add_offload_flags(app, o.offload);
  add_split_flags(app, o.split);
  app.add_option("--backend", o.backend, "Where to compute; ref is the scalar specification, for checking")
      ->check(CLI::IsMember({"cpu", "ref"}))
      ->capture_default_str();
  app.add_flag("--mlock", o.lock, "Lock the model in memory: the system never swaps it out");
  app.add_option("--chat-template", o.chat_template,
                 "A Jinja file that replaces the model's own chat template");
}

namespace {

constexpr double kLinkPatience = 60;  // seconds that a GPU waits for another one's part of a step

CudaOptions cuda_options(const OpenOptions& o) {
  CudaOptions c;
  c.memory = o.gpu_memory;
  c.memory_limit = static_cast<int64_t>(o.gpu_memory_limit);
  c.graphs = o.cuda_graphs == "on";
  return c;
}

// A GPU that has been left out of what is split is not asked.
std::vector<int> split_gpus(const OpenOptions& o, std::vector<int> gpus) {
  if (o.split.shares.empty()) return gpus;
  if (o.split.shares.size() > gpus.size())
    throw Error(fmt::format("{} shares for {} GPUs", o.split.shares.size(), gpus.size()),
                "give -ts a share for each GPU, in the order of --device");
  std::vector<int> used;
  for (size_t i = 0; i < o.split.shares.size(); ++i)
    if (o.split.shares[i] > 0) used.push_back(gpus[i]);
  return used;
}

// As many bytes as memory for what is computed beside the weights.
bool fits_one(const Backend& gpu, const WeightSource& source) {
  return static_cast<int64_t>(source.total_bytes()) <= weights_room(gpu.info());
}

std::shared_ptr<Backend> make_several(const std::vector<int>& gpus, const OpenOptions& o,
                                      const WeightSource* source) {
  if (o.offload.given())
    throw Error("weights stay with the CPU beside one GPU only", "name one: --device cuda:0");
  SplitFlags flags = o.split;
  std::erase(flags.shares, 0.0);
  std::vector<std::shared_ptr<Backend>> devices;
  std::vector<DeviceRoom> rooms;
  const std::vector<std::string> names = cuda_devices();
  for (const int g : gpus) {
    devices.push_back(make_cuda_backend(g, cuda_options(o)));
    const DeviceInfo info = devices.back()->info();
    rooms.push_back({names.at(static_cast<size_t>(g)), info.mem_total, info.mem_free});
  }
  PartsOptions options;
  options.exchange = std::make_shared<Exchange>(static_cast<int32_t>(gpus.size()));
  std::string links;
  bool direct = false;
  options.exchange->links = make_cuda_links(gpus, flags.peer == "auto", kLinkPatience, &links, &direct);
  const SplitPlan plan = plan_split(source ? split_model(*source) : SplitModel(), rooms, flags, direct);
  if (o.planned) *o.planned = plan;
  options.mode = plan.mode, options.shares = plan.shares;
  options.layers = static_cast<int32_t>(source ? split_model(*source).layers.size() : 0);
  options.first_layer = plan.first_layer;
  if (source) log_info("{} GPUs, {}; {}", gpus.size(), plan.text, links);
  return make_parts(std::move(devices), options);
}

// Parts of one machine's processors: for tests, and machines with memory of their own by socket.
std::shared_ptr<Backend> make_cpus(size_t n, const OpenOptions& o, const WeightSource* source) {
  const int all = o.threads ? o.threads : available_cpus();
  std::vector<std::shared_ptr<Backend>> devices;
  for (size_t i = 0; i < n; ++i)
    devices.push_back(make_cpu_backend(std::max(1, all / static_cast<int>(n)), o.isa));
  SplitFlags flags = o.split;
  if (flags.mode == "auto") flags.mode = "tensor";
  const SplitPlan plan = plan_split(source ? split_model(*source) : SplitModel(),
                                    std::vector<DeviceRoom>(n, {"cpu", 0, 0}), flags, true);
  if (o.planned) *o.planned = plan;
  PartsOptions options;
  options.mode = plan.mode, options.shares = plan.shares, options.first_layer = plan.first_layer;
  options.layers = static_cast<int32_t>(source ? split_model(*source).layers.size() : 0);
  return make_parts(std::move(devices), options);
}

std::shared_ptr<Backend> make_gpu(int index, const OpenOptions& o, const WeightSource* source) {
  CudaOptions c = cuda_options(o);
  std::shared_ptr<Backend> gpu = make_cuda_backend(index, c);
  if (!source) return gpu;
  const DeviceInfo device = gpu->info();
  const Offload part = plan_offload(*source, o.offload, weights_room(device));
  if (part.text.empty()) return gpu;
  log_info("{} of weights on {} ({} free), {} with the CPU: {}",
           human_bytes(static_cast<double>(part.device)), device.name,
           human_bytes(static_cast<double>(device.mem_free)), human_bytes(static_cast<double>(part.host)),
           part.text);
  // A core is left for the thread that waits for the team; without it both lose their time slices.
  c.host =
      make_cpu_backend(o.threads ? o.threads : std::max(1, available_cpus() - 1), o.isa, parse_numa(o.numa));
  c.host_keeps = part.keeps;
  c.fetches = o.offload.fetches;
  return make_cuda_backend(index, c);
}

// Several where the flags say so, or where one has no room for the model and nothing says that one it is.
std::shared_ptr<Backend> make_gpus(std::vector<int> gpus, const OpenOptions& o, const WeightSource* source) {
  gpus = split_gpus(o, std::move(gpus));
  if (gpus.empty()) throw Error("no GPU has a share of the model", "give one a share: -ts 3,1");
  const bool asked = o.split.mode == "layer" || o.split.mode == "tensor" || !o.split.shares.empty();
  if (gpus.size() > 1 && o.split.mode != "none" && (asked || o.device != "auto"))
    return make_several(gpus, o, source);
  const size_t main = std::min(static_cast<size_t>(o.split.main), gpus.size() - 1);
  if (gpus.size() > 1 && o.split.mode == "auto" && source && !o.offload.given()) {
    std::shared_ptr<Backend> one = make_cuda_backend(gpus[main], cuda_options(o));
    if (fits_one(*one, *source)) return one;
    one.reset();
    try {
      return make_several(gpus, o, source);
    } catch (const DeviceError&) {
      throw;
    } catch (const Error& e) {
      log_info("{}: one GPU and the CPU compute", e.what());
    }
  }
  return make_gpu(gpus[main], o, source);
}

// The GPUs that auto means, or null: none is there, it is too old, or nothing of the weights fits.
std::shared_ptr<Backend> automatic_gpu(const OpenOptions& o, const WeightSource* source) {
  const size_t there = cuda_devices().size();
  if ((!o.isa.empty() && !o.offload.given()) || there == 0) return nullptr;
  std::vector<int> gpus(std::min<size_t>(there, static_cast<size_t>(kMaxParts)));
  std::iota(gpus.begin(), gpus.end(), 0);
  const bool asked = o.offload.given() || o.split.mode == "layer" || o.split.mode == "tensor" ||
                     !o.split.shares.empty() || o.split.main > 0;
  if (o.split.main >= static_cast<int>(there))
    throw Error(fmt::format("there is no CUDA device {}", o.split.main),
                fmt::format("devices here: cuda:0 to cuda:{}", there - 1));
  try {
    return make_gpus(gpus, o, source);
  } catch (const Error& e) {
    if (asked) throw;
    log_info("{}: the CPU computes", e.what());
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<Backend> make_backend(const OpenOptions& o, const WeightSource* source) {
  if (o.backend == "ref") return make_ref_backend();
  if (o.device == "auto") {
    if (auto gpu = automatic_gpu(o, source)) return gpu;
  } else if (const std::vector<int> named = device_numbers(o.device); named[0] >= 0) {
    return make_gpus(named, o, source);
  } else if (named.size() > 1) {
    return make_cpus(named.size(), o, source);
  }
  if (o.offload.given()) log_warn("no GPU is used: the CPU has all weights");
  return make_cpu_backend(o.threads, o.isa, parse_numa(o.numa));
}

double measure_read_ceiling(const OpenOptions& o, const Backend& backend, double bytes) {
  const std::vector<int> named = device_numbers(o.device);
  // By layers one of several devices reads at a time, by outputs all do.
  if (!backend.host_memory() && (named.empty() || named[0] >= 0)) {
    if (!o.planned || o.planned->mode != SplitMode::tensor)
      return measure_cuda_read(named.empty() ? o.split.main : named[0]);
    double all = 0;
    for (size_t d = 0; d < o.planned->names.size(); ++d)
      all += measure_cuda_read(named.size() > d ? named[d] : static_cast<int>(d));
    return all;
  }
  return measure_read_gbps(o.threads, static_cast<size_t>(bytes), parse_numa(o.numa)) * 1e9;
}
double measure_dot_ceiling(const OpenOptions& o) { return measure_dot_gops(o.threads, o.isa) * 1e9; }

// Pages count once they are touched: caches are reserved for contexts that few requests reach. With a limit
// on locked memory later allocations would fail, so it must be absent.
void lock_memory() {
  rlimit limit{};
  const bool may =
      ::geteuid() == 0 || (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY);
  if (!may || ::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0)
    log_warn(
        "--mlock: this user may not lock so much memory (ulimit -l unlimited, or LimitMEMLOCK=infinity of "
        "the service)");
}

Opened open_model(const OpenOptions& o, const Progress& report) {
  if (o.lock) lock_memory();
  Opened opened;
  std::shared_ptr<WeightSource> source = open_source(o.model);
  if (o.load_as == "fp8") {
    ProgressBar bar("making weights FP8");
    source = load_as_fp8(source, o.threads, [&](double part, std::string_view w) { bar.update(part, 1, w); });
  }
  if (o.activations == "fp8") source = round_activations(source);
  apply_rope_flags(o.rope, *source);
  opened.backend = make_backend(o, source.get());
  const auto began = std::chrono::steady_clock::now();
  {
    ProgressBar bar("loading");
    const Progress progress = [&](double part, std::string_view what) {
      bar.update(part, 1, what);
      if (report) report(part, what);
    };
    opened.model = std::make_shared<Model>(load_model(source, *opened.backend, progress));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  log_info("{}: {}, {}, {} in {:.2f} s", opened.model->spec.name, opened.model->spec.arch,
           human_bytes(static_cast<double>(source->total_bytes())), opened.backend->info().name, seconds);
  for (const LayerSpec& l : opened.model->spec.layers)
    if (l.rope.any()) {
      log_info("positions of layers that see everything: {}", rope_text(l.rope));
      break;
    }
  if (!has_tokenizer(*source)) return opened;
  TokenizerData data = tokenizer_from_source(*source);
  std::string chat_template = data.chat_template;
  if (!o.chat_template.empty()) chat_template = read_file(o.chat_template, size_t{4} << 20);
  auto tokenizer = std::make_shared<Tokenizer>(std::move(data));
  const auto text = [&](Token t) { return t < 0 ? std::string() : tokenizer->piece(t); };
  opened.bos = text(tokenizer->data().bos);
  opened.eos = text(tokenizer->data().eos);
  opened.chat = make_chat_format(opened.model->spec.arch, chat_template,
                                 {.empty_thought = opened.model->spec.per_layer_dim == 0});
  opened.tokenizer = std::move(tokenizer);
  return opened;
}

void require_text(const Opened& opened) {
  if (!opened.tokenizer)
    throw Error(fmt::format("'{}' has no tokenizer", opened.model->source->path()),
                "put tokenizer.json beside config.json, or use a GGUF file that carries one");
}

namespace {

// Off unless asked for; names as in llama.cpp.
void add_llama_samplers(CLI::App& app, SampleFlags& f) {
  SampleParams& p = f.params;
  const auto add = [&](const char* names, auto& value, double low, double high, const char* help) {
    app.add_option(names, value, help)->check(CLI::Range(low, high))->capture_default_str();
  };
  constexpr double kMany = 1 << 30;
  add("--top-nsigma,--top-n-sigma", p.top_n_sigma, -1, 1000,
      "Keep tokens whose logit is at most n standard deviations below the best (-1: all)");
  add("--typical,--typical-p", p.typical_p, 0, 1, "Locally typical sampling with this share (1: off)");
  add("--xtc-probability", p.xtc_probability, 0, 1, "Probability that XTC removes the top choices (0: off)");
  add("--xtc-threshold", p.xtc_threshold, 0, 1,
      "Probability from which on XTC counts a token as a top choice");
  add("--dynatemp-range", p.dynatemp_range, 0, 100,
      "Dynamic temperature: range around --temp, set by the entropy (0: off)");
  add("--dynatemp-exp", p.dynatemp_exponent, 0, 100, "Dynamic temperature: exponent of the entropy");
  add("--mirostat", p.mirostat, 0, 2, "Mirostat 1 or 2, in place of top-k, top-p and the like (0: off)");
  add("--mirostat-ent", p.mirostat_tau, 0, 100, "Mirostat: target surprise in bits");
  add("--mirostat-lr", p.mirostat_eta, 0, 10, "Mirostat: learning rate");
  add("--dry-multiplier", p.dry_multiplier, 0, 100, "DRY: penalty on repeated sequences (0: off)");
  add("--dry-base", p.dry_base, 1, 100, "DRY: each further repeated token multiplies the penalty by this");
  add("--dry-allowed-length", p.dry_allowed_length, 1, kMany,
      "DRY: repeats from this length on are penalized");
  add("--dry-penalty-last-n", p.dry_penalty_last_n, -1, kMany,
      "DRY: tokens to look back over (-1: all, 0: off)");
  app.add_option_function<std::vector<std::string>>(
         "--dry-sequence-breaker",
         [&f](const std::vector<std::string>& all) {
           f.dry_breakers.clear();
           for (const std::string& one : all)
             if (one != "none") f.dry_breakers.push_back(one);
         },
         "DRY: text that ends a repeat, in place of the default ones; repeatable (none: no such text)")
      ->allow_extra_args(false);
}

}  // namespace

void add_sample_flags(CLI::App& app, SampleFlags& f) {
  SampleParams& p = f.params;
  p.top_k = 64;
  p.top_p = 0.95F;
  app.add_option("-n,--predict", f.max_tokens, "Tokens to generate (-1: until the model stops)")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  f.temp = app.add_option("--temp", p.temperature, "Temperature (0: greedy)")
               ->check(CLI::Range(0.0, 100.0))
               ->capture_default_str();
  f.top_k = app.add_option("--top-k", p.top_k, "Keep the k most probable tokens (0: all)")
                ->check(CLI::Range(0, 1 << 30))
                ->capture_default_str();
  f.top_p = app.add_option("--top-p", p.top_p, "Keep the most probable tokens that sum to p")
                ->check(CLI::Range(0.0, 1.0))
                ->capture_default_str();
  f.min_p = app.add_option("--min-p", p.min_p, "Drop tokens less probable than min-p times the best")
                ->check(CLI::Range(0.0, 1.0))
                ->capture_default_str();
  app.add_option("--repeat-penalty", p.repeat_penalty, "Penalty on tokens that occurred already (1: none)")
      ->check(CLI::Range(0.01, 10.0))
      ->capture_default_str();
  app.add_option("--repeat-last-n", p.repeat_last_n,
                 "Tokens that the repeat penalty looks back over (-1: all, 0: off)")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str();
  app.add_option("--presence-penalty", p.presence_penalty, "OpenAI's presence penalty")
      ->check(CLI::Range(-2.0, 2.0))
      ->capture_default_str();
  app.add_option("--frequency-penalty", p.frequency_penalty, "OpenAI's frequency penalty")
      ->check(CLI::Range(-2.0, 2.0))
      ->capture_default_str();
  add_llama_samplers(app, f);
  app.add_option("-s,--seed", f.seed, "Random seed (-1: a new one each time)")->capture_default_str();
  app.add_flag("--ignore-eos", f.ignore_eos, "Continue after the end-of-turn token");
}

void use_model_sampling(const WeightSource& source, SampleFlags& f) {
  const auto file = std::filesystem::path(source.path()) / "generation_config.json";
  nlohmann::json given;
  std::error_code ec;
  if (std::filesystem::is_directory(source.path(), ec) && std::filesystem::exists(file, ec))
    given = nlohmann::json::parse(read_file(file.string(), size_t{16} << 20), nullptr, false);
  const auto take = [&](const CLI::Option* flag, const char* key, const char* hf, double most, auto& value) {
    if (!flag || flag->count() > 0) return;
    double v = -1;
    const MetaValue* m = source.meta().find(std::string("general.sampling.") + key);
    if (m && std::holds_alternative<double>(*m)) v = std::get<double>(*m);
    if (m && std::holds_alternative<int64_t>(*m)) v = static_cast<double>(std::get<int64_t>(*m));
    if (!m && given.is_object() && given.contains(hf) && given[hf].is_number()) v = given[hf].get<double>();
    if (v >= 0 && v <= most) value = static_cast<std::remove_reference_t<decltype(value)>>(v);
  };
  take(f.temp, "temp", "temperature", 100, f.params.temperature);
  take(f.top_k, "top_k", "top_k", 1 << 30, f.params.top_k);
  take(f.top_p, "top_p", "top_p", 1, f.params.top_p);
  take(f.min_p, "min_p", "min_p", 1, f.params.min_p);
}

void add_engine_flags(CLI::App& app, EngineConfig& c) {
  app.add_option("-c,--ctx-size", c.context, "Context in tokens (0: the model's own, at most 8192)")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("-b,--batch-size", c.prefill_chunk, "Prompt tokens per step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  add_cache_flags(app, c);
}

void add_cache_flags(CLI::App& app, EngineConfig& c) {
  add_cache_type(app, "--cache-type-k", c.cache_k, "Type of cached keys (-ctk)");
  add_cache_type(app, "--cache-type-v", c.cache_v, "Type of cached values (-ctv)");
  const auto sliding = [&](const std::string& flag, std::optional<DType>& type, const std::string& help) {
    app.add_option_function<std::string>(
        flag, [&type](const std::string& name) { type = cache_type(name); }, help);
  };
  sliding("--cache-type-k-swa", c.sliding_k, "Type of cached keys of sliding layers (default: as -ctk)");
  sliding("--cache-type-v-swa", c.sliding_v, "Type of cached values of sliding layers (default: as -ctv)");
  app.add_option_function<std::vector<std::string>>(
         "--kv-layers",
         [&c](const std::vector<std::string>& all) {
           c.kv_layers.clear();
           for (const std::string& one : all) c.kv_layers.push_back(layer_format(one));
         },
         "Cache types (K/V) of single layers: 5=f16/q8_0,11=f16")
      ->delimiter(',');
  app.add_flag_callback(
      "--kv-single", [&c] { c.single_copy = true; },
      "Keep one copy where the model computes keys from values (K = V)");
  const auto protect = [&](const char* flag, int32_t KvProtect::*n, const char* help) {
    app.add_option_function<int32_t>(
           flag,
           [&c, n](int32_t positions) {
             if (!c.kv_protect) c.kv_protect.emplace();
             (*c.kv_protect).*n = positions;
           },
           help)
        ->check(CLI::Range(0, kMaxContext));
  };
  protect("--kv-sinks", &KvProtect::sinks,
          "Keep the first N positions in f16 as well, in global layers with smaller cache types");
  protect("--kv-recent", &KvProtect::recent, "The same for the last N positions before each token");
  auto* policy = app.add_option(
      "--kv-policy", c.kv_policy,
      "Let a policy choose the cache types: auto (the most precise that fits into free memory), "
      "precise, balanced, small, smallest");
  for (const char* chosen : {"--cache-type-k", "--cache-type-v", "--cache-type-k-swa", "--cache-type-v-swa"})
    policy->excludes(app.get_option(chosen));
}

void exclude_cache_flags(CLI::App& app, CLI::Option& caches) {
  for (const char* flag : {"--cache-type-k", "--cache-type-v", "--cache-type-k-swa", "--cache-type-v-swa",
                           "--kv-layers", "--kv-single", "--kv-sinks", "--kv-recent", "--kv-policy"})
    caches.excludes(app.get_option(flag));
}

KvFormats flag_formats(EngineConfig cache, const Opened& opened, int32_t context) {
  cache.context = context;
  cache.sequences = 1;
  return formats_of(resolve(std::move(cache), opened.model->spec, false, opened.backend->info(),
                            allowed_by(*opened.backend)));
}

// Names of other programs for the same bytes: forks of llama.cpp write TQ3_0, tbq3_0.
DType cache_type(const std::string& given) {
  std::string name = given;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.starts_with("tbq") && name.ends_with("_0")) name.resize(name.size() - 2);
  if (name == "q4_0") return DType::kv4;  // llama.cpp's q4_0 caches are rotated too: the same bytes
  if (name == "fp8_e4m3") return DType::fp8;
  const auto type = dtype_of_name(name);
  if (type && is_kv_format(*type)) return *type;
  std::string known;
  for (const DType t : kv_formats()) known += fmt::format("{}{}", known.empty() ? "" : " ", info(t).name);
  throw Error(fmt::format("unknown cache type '{}'", name), "choose one of " + known);
}

std::vector<DType> cache_types(const std::string& names) {
  std::vector<DType> types;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('/', at), names.size());
    types.push_back(cache_type(names.substr(at, end - at)));
    at = end + 1;
  }
  return types;
}

KvLayerFormat layer_format(const std::string& text) {
  const size_t eq = text.find('=');
  int32_t layer = -1;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + std::min(eq, text.size()), layer);
  if (eq == std::string::npos || ec != std::errc() || end != text.data() + eq || layer < 0)
    throw Error(fmt::format("'{}' is not a layer and its cache types", text), "give them like 5=f16/q8_0");
  const std::vector<DType> types = cache_types(text.substr(eq + 1));
  if (types.size() > 2)
    throw Error(fmt::format("'{}' names {} cache types", text, types.size()), "give them like 5=f16/q8_0");
  return {layer, types.front(), types.back()};
}

CLI::Option* add_cache_type(CLI::App& app, const std::string& flag, DType& type, const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag, [&type](const std::string& name) { type = cache_type(name); }, help)
      ->default_str(std::string(info(type).name));
}

}  // namespace carat
