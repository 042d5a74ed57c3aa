// carat eval kld: how far the next-token distributions of one configuration are from another's, over a text.
// The reference is run beside it, or read from a file written before.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstring>

#include "apps/cli.h"
#include "apps/eval.h"
#include "apps/progress.h"
#include "base/file.h"

namespace carat {
namespace {

struct KldOptions : EvalOptions {
  std::string base, read, write;
  DType base_k = DType::f32, base_v = DType::f32;
  std::string by_layer;  // caches to give one layer at a time
  bool no_floor = false;
  std::vector<std::string> caches;  // K/V pairs to go through; empty: the one of -ctk and -ctv
  int32_t from = 0;
  bool no_chat = false;
};

// Log-probabilities of every scored position, [window][position - from][vocab].
struct Reference {
  int32_t vocab = 0, from = 0;
  std::vector<std::vector<Token>> windows;
  std::vector<std::vector<float>> log_p;
};

// "carat ref": magic, version, vocab, from, windows; per window its length, tokens and values; little-endian.
constexpr char kMagic[8] = {'c', 'a', 'r', 'a', 't', 'r', 'e', 'f'};
constexpr uint32_t kVersion = 1;

void save(const Reference& r, const std::string& path) {
  AtomicFile f(path);
  const auto put = [&](uint32_t v) { f.write(&v, 4); };
  f.write(kMagic, sizeof kMagic);
  put(kVersion);
  put(static_cast<uint32_t>(r.vocab));
  put(static_cast<uint32_t>(r.from));
  put(static_cast<uint32_t>(r.windows.size()));
  for (size_t w = 0; w < r.windows.size(); ++w) {
    put(static_cast<uint32_t>(r.windows[w].size()));
    f.write(r.windows[w].data(), r.windows[w].size() * 4);
    f.write(r.log_p[w].data(), r.log_p[w].size() * 4);
  }
  f.commit();
}

Reference load(const std::string& path) {
  const MappedFile file(path);
  std::span<const std::byte> rest = file.bytes();
  const auto take = [&](void* to, size_t n) {
    if (n > rest.size()) throw Error(fmt::format("'{}' is cut off", path), "write it again");
    std::memcpy(to, rest.data(), n);
    rest = rest.subspan(n);
  };
  const auto number = [&] {
    uint32_t v;
    take(&v, 4);
    return v;
  };
  char magic[8];
  take(magic, sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0 || number() != kVersion)
    throw Error(fmt::format("'{}' is not a reference of this version", path),
                "write one with --save-reference");
  Reference r;
  r.vocab = static_cast<int32_t>(number());
  r.from = static_cast<int32_t>(number());
  const uint32_t windows = number();
  if (r.vocab < 1 || r.from < 0) throw Error(fmt::format("'{}' is damaged", path));
  for (uint32_t w = 0; w < windows; ++w) {
    const size_t n = number();
    const size_t scored = n > static_cast<size_t>(r.from) ? n - static_cast<size_t>(r.from) : 0;
    if (n > rest.size() / 4 || scored > rest.size() / 4 / static_cast<size_t>(r.vocab))
      throw Error(fmt::format("'{}' is cut off", path), "write it again");
    std::vector<Token> tokens(n);
    take(tokens.data(), n * 4);
    std::vector<float> log_p(scored * static_cast<size_t>(r.vocab));
    take(log_p.data(), log_p.size() * 4);
    r.windows.push_back(std::move(tokens));
    r.log_p.push_back(std::move(log_p));
  }
  return r;
}

// A position beyond every window: nothing would be scored.
void check_from(const Reference& r) {
  size_t longest = 0;
  for (const auto& w : r.windows) longest = std::max(longest, w.size());
  if (static_cast<size_t>(r.from) >= longest)
    throw Error(fmt::format("--from {} is beyond the windows of {} tokens", r.from, longest),
                "choose a smaller --from or a larger -c");
}

Reference measure(const Opened& opened, const KldOptions& o, const KvFormats& formats) {
  Reference r;
  r.vocab = opened.model->spec.vocab;
  r.from = o.from;
  r.windows = windows_of(o, opened);
  check_from(r);
  Feeder feeder(opened, o.rows(), formats, o.window);
  ProgressBar bar("reference", "windows");
  for (const auto& w : r.windows) {
    std::vector<float>& out = r.log_p.emplace_back();
    feeder.feed(w, o.from, [&](int32_t, std::span<const float> z) {
      const auto all = static_cast<float>(log_sum_exp(z));
      for (const float x : z) out.push_back(x - all);
    });
    bar.update(static_cast<double>(r.log_p.size()), static_cast<double>(r.windows.size()));
  }
  return r;
}

constexpr int32_t kBuckets[] = {0, 256, 1024, 4096, 16384, 65536};  // first positions

struct Divergence {
  struct Point {
    double kl;
    int32_t pos;
    bool same_top;
  };
  std::vector<Point> points;

  void add(int32_t pos, std::span<const float> log_p, std::span<const float> z) {
    const double all = log_sum_exp(z);
    double sum = 0;
    for (size_t t = 0; t < z.size(); ++t) sum += std::exp(double{log_p[t]}) * (log_p[t] - (z[t] - all));
    const auto top = [](std::span<const float> x) {
      return std::max_element(x.begin(), x.end()) - x.begin();
    };
    points.push_back({std::max(0.0, sum), pos, top(log_p) == top(z)});
  }

  nlohmann::ordered_json summary(int32_t first, int32_t end) const {
    std::vector<double> kl;
    double sum = 0;
    size_t same = 0;
    for (const Point& p : points)
      if (p.pos >= first && p.pos < end) kl.push_back(p.kl), sum += p.kl, same += p.same_top;
    if (kl.empty()) return {};
    std::sort(kl.begin(), kl.end());
    const auto at = [&](double q) { return kl[static_cast<size_t>(q * static_cast<double>(kl.size() - 1))]; };
    const auto n = static_cast<double>(kl.size());
    return {{"positions", kl.size()}, {"mean", sum / n},  {"median", at(0.5)},
            {"p999", at(0.999)},      {"max", kl.back()}, {"same_top", static_cast<double>(same) / n}};
  }
};

// What of a mean is not the floor's: the same positions in both, so that what the text does cancels out.
struct Excess {
  double mean = 0, error = 0;  // error: two standard errors
  bool none() const { return mean < error; }
};
Excess over(const Divergence& d, const Divergence& floor) {
  double sum = 0, squares = 0;
  const auto n = static_cast<double>(d.points.size());
  for (size_t i = 0; i < d.points.size(); ++i) {
    const double x = d.points[i].kl - floor.points[i].kl;
    sum += x, squares += x * x;
  }
  const double mean = sum / n;
  return {mean, 2 * std::sqrt(std::max(0.0, squares / n - mean * mean) / n)};
}

std::string text_of(const Excess& e) {
  return e.none() ? fmt::format("none (< {:.6f})", e.error)
                  : fmt::format("{:.6f} +- {:.6f}", e.mean, e.error);
}

Record by_position(const Divergence& d) {
  Record all = Record::array();
  for (size_t b = 0; b < std::size(kBuckets); ++b) {
    auto part = d.summary(kBuckets[b], b + 1 < std::size(kBuckets) ? kBuckets[b + 1] : INT32_MAX);
    if (part.is_null()) continue;
    part["from"] = kBuckets[b];
    all.push_back(std::move(part));
  }
  return all;
}

void print(const std::string& name, const Divergence& d, const std::string& excess) {
  const auto line = [](const std::string& label, const Record& s, const std::string& more) {
    fmt::print("{:24} {:>9} {:>10.6f} {:>10.6f} {:>10.6f} {:>10.6f} {:>8.2f} %  {}\n", label,
               s["positions"].get<size_t>(), s["mean"].get<double>(), s["median"].get<double>(),
               s["p999"].get<double>(), s["max"].get<double>(), 100 * s["same_top"].get<double>(), more);
  };
  line(name, d.summary(0, INT32_MAX), excess);
  if (const Record parts = by_position(d); parts.size() > 1)
    for (const auto& part : parts) line(fmt::format("  from {}", part["from"].get<int32_t>()), part, "");
  std::fflush(stdout);
}

Record record_of(const Measurement& m, const KldOptions& o, const std::string& name, const KvFormats& f,
                 const Divergence& d, const Divergence* floor) {
  Record r = m.begin("kld " + name);
  put_cache(r["settings"], f);
  r["settings"]["text"] = o.text.empty() ? o.tokens : o.text;
  r["settings"]["ctx"] = o.window;
  r["settings"]["base"] = !o.base.empty()              ? o.base
                          : o.open.activations.empty() ? "itself"
                                                       : "itself, activations not rounded";
  const Record all = d.summary(0, INT32_MAX);
  Record& x = r["figures"];
  x["kld"] = all["mean"];
  x["kld_summary"] = all;
  x["by_position"] = by_position(d);
  if (floor) {
    const Excess e = over(d, *floor);
    x["kld_floor"] = floor->summary(0, INT32_MAX)["mean"];
    x["kld_over_floor"] = e.mean, x["kld_over_floor_error"] = e.error;
  }
  return r;
}

void check_same(const Reference& r, const Opened& opened, const std::string& what) {
  if (r.vocab != opened.model->spec.vocab)
    throw Error(fmt::format("the vocabularies differ: {} has {} entries, the model {}", what, r.vocab,
                            opened.model->spec.vocab));
}

Divergence diverge(const Opened& opened, const KldOptions& o, const Reference& reference,
                   const KvFormats& formats) {
  size_t longest = 0;
  for (const auto& w : reference.windows) longest = std::max(longest, w.size());
  Feeder feeder(opened, o.rows(), formats, check_length(opened, longest));
  Divergence d;
  for (size_t w = 0; w < reference.windows.size(); ++w)
    feeder.feed(reference.windows[w], reference.from, [&](int32_t pos, std::span<const float> z) {
      const size_t at = static_cast<size_t>(pos - reference.from) * z.size();
      d.add(pos, {reference.log_p[w].data() + at, z.size()}, z);
    });
  return d;
}

Reference reference_of(const KldOptions& o, const Opened& opened) {
  const KvFormats formats{o.base_k, o.base_v, o.base_k, o.base_v};
  if (!o.read.empty()) {
    Reference reference = load(o.read);
    check_same(reference, opened, "the reference");
    check_from(reference);
    return reference;
  }
  // A reference rounds no activations: what that costs is what is asked.
  if (o.base.empty() && o.open.activations.empty()) return measure(opened, o, formats);
  OpenOptions open = o.open;
  if (!o.base.empty()) open.model = o.base;
  open.activations.clear();
  const Opened base = open_model(open);
  check_same({base.model->spec.vocab, 0, {}, {}}, opened, "the base");
  return measure(base, o, formats);
}

// One setting after the other: with --by-layer that of one layer alone, all others in f16.
struct Tried {
  std::string name;
  KvFormats formats;
};
std::vector<Tried> to_try(const KldOptions& o, const Opened& opened) {
  std::vector<Tried> all;
  if (o.by_layer.empty()) {
    for (const KvFormats& f : formats_to_try(o.caches, o, opened, o.window)) all.push_back({f.text(), f});
    return all;
  }
  const std::vector<DType> types = cache_types(o.by_layer);
  const KvFormats f16;
  const std::vector<KvLayerSpec> layers = kv_layers(opened.model->spec, f16);
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].from != static_cast<int32_t>(l) || layers[l].kv.heads == 0) continue;
    KvFormats f;
    f.layers.push_back({static_cast<int32_t>(l), types.front(), types.back()});
    all.push_back({fmt::format("layer {} ({})", l, layers[l].kv.window > 0 ? "sliding" : "global"), f});
  }
  return all;
}

void eval_kld(KldOptions& o) {
  o.chat = !o.no_chat;
  o.score_all = true;
  Measurement m(o.measure, "kld");
  const Opened opened = open_model(o.open);
  m.opened(opened);
  if (!o.write.empty()) return save(measure(opened, o, flag_formats(o.cache, opened, o.window)), o.write);
  const Reference reference = reference_of(o, opened);
  const bool table = m.prints_table(),
             has_floor = !o.no_floor && o.base.empty() && o.open.activations.empty();
  if (table)
    fmt::print("{:24} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n", "cache K/V", "positions", "mean",
               "median", "99.9 %", "max", "same top", has_floor ? "of the mean over the floor" : "");
  // Caches in f16 lose nothing that a model would notice. What remains of them is how far integer products of
  // weights carry the last bit of anything: no cache is below it, and no cache is to blame for it.
  Divergence floor;
  if (has_floor) {
    floor = diverge(opened, o, reference, KvFormats{});
    if (table) print("floor (f16/f16)", floor, "");
  }
  for (const Tried& t : to_try(o, opened)) {
    const Divergence d = diverge(opened, o, reference, t.formats);
    if (table) print(t.name, d, has_floor ? text_of(over(d, floor)) : "");
    m.add(record_of(m, o, t.name, t.formats, d, has_floor ? &floor : nullptr));
  }
  m.finish();
}

}  // namespace

void add_eval_kld(CLI::App& eval) {
  auto o = std::make_shared<KldOptions>();
  CLI::App* app =
      eval.add_subcommand("kld", "KL divergence of a configuration from a reference, over a text");
  add_eval_common(*app, *o);
  add_eval_windows(*app, *o);
  app->add_option("--base", o->base, "The reference's model (default: the same, without --activations)");
  add_cache_type(*app, "--base-cache-type-k", o->base_k, "The reference's cached keys");
  add_cache_type(*app, "--base-cache-type-v", o->base_v, "The reference's cached values");
  auto* write =
      app->add_option("--save-reference", o->write, "Write this configuration as a reference and exit");
  app->add_option("--reference", o->read, "Compare with a reference written before")->excludes(write);
  add_caches_flag(*app, o->caches, "Go through these caches");
  app->add_option("--from", o->from, "Score positions from this one on")->check(CLI::NonNegativeNumber);
  app->add_option("--by-layer", o->by_layer,
                  "Give these caches (q8_0, or q8_0/tq4: K/V) to one layer at a time, f16 to the others");
  app->add_flag("--no-floor", o->no_floor,
                "Do not measure f16 caches first, the lowest divergence that caches can have");
  app->add_flag("--no-chat", o->no_chat, "Use bare windows even if the model has a chat format");
  app->callback([o, app] {
    if (o->text.empty() && o->tokens.empty() && o->read.empty())
      throw Error("no text", "give one with -f FILE or --tokens FILE.json");
    if (!o->read.empty())
      refuse_without_effect(*app,
                            {"--file", "--tokens", "--ctx-size", "--chunks", "--from", "--base", "--no-chat"},
                            "eval kld --reference");
    if (!o->by_layer.empty()) refuse_without_effect(*app, {"--caches"}, "eval kld --by-layer");
    eval_kld(*o);
  });
}

}  // namespace carat
