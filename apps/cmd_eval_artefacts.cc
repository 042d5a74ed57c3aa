// carat eval artefacts: one model as several publishers quantize it, beside the weights they all come from.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>

#include "apps/cli.h"
#include "apps/eval.h"
#include "apps/progress.h"
#include "apps/spec_runs.h"
#include "base/file.h"

namespace carat {
namespace {

struct ArtefactOptions : EvalOptions {
  std::vector<std::string> models;
  SpecFlags spec;
  std::string prompts, html;
  int32_t depth = 4, generate = 32;
};

// What the weights that all come from answer: log-probabilities [window][position][vocab].
struct Answers {
  std::vector<std::vector<Token>> windows;
  std::vector<std::vector<float>> log_p;
};

struct Artefact {
  std::string name, stored;
  double bytes = 0, nats = 0, prompt_tps = 0, decode_tps = 0, al = 0;
  std::vector<double> kl;
  size_t scored = 0, same = 0;

  double kl_mean() const {
    double sum = 0;
    for (const double v : kl) sum += v;
    return kl.empty() ? 0 : sum / static_cast<double>(kl.size());
  }
  double kl_at(double q) const {
    if (kl.empty()) return 0;
    std::vector<double> sorted = kl;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
  }
  double same_top() const {
    return kl.empty() ? 1 : static_cast<double>(same) / static_cast<double>(kl.size());
  }
  double ppl() const { return std::exp(nats / static_cast<double>(std::max<size_t>(1, scored))); }
};

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// Of the whole directory or file, towers and tokenizer included: what is downloaded.
double bytes_of(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return static_cast<double>(fs::file_size(path));
  double sum = 0;
  for (const auto& e : fs::directory_iterator(path))
    if (e.is_regular_file()) sum += static_cast<double>(e.file_size());
  return sum;
}

size_t best(std::span<const float> z) {
  return static_cast<size_t>(std::max_element(z.begin(), z.end()) - z.begin());
}

// Answers are filled if they are those of the base (kl stays empty), else compared with.
void score(const Opened& opened, const ArtefactOptions& o, Answers& answers, bool is_base, Artefact& a) {
  size_t longest = 0;
  for (const auto& w : answers.windows) longest = std::max(longest, w.size());
  Feeder feeder(opened, o.rows(), flag_formats(o.cache, opened, o.window), check_length(opened, longest));
  ProgressBar bar(a.name, "windows");
  for (size_t i = 0; i < answers.windows.size(); ++i) {
    const std::vector<Token>& w = answers.windows[i];
    if (is_base) answers.log_p.emplace_back();
    std::vector<float>& log_p = answers.log_p[i];
    feeder.feed(w, 0, [&](int32_t at, std::span<const float> z) {
      const double all = log_sum_exp(z);
      const auto next = static_cast<size_t>(at) + 1;
      if (next < w.size()) a.nats += all - z[static_cast<size_t>(w[next])], ++a.scored;
      if (is_base) {
        for (const float v : z) log_p.push_back(static_cast<float>(v - all));
        return;
      }
      const std::span<const float> p(log_p.data() + static_cast<size_t>(at) * z.size(), z.size());
      double sum = 0;
      for (size_t t = 0; t < z.size(); ++t) sum += std::exp(double{p[t]}) * (p[t] - (z[t] - all));
      a.kl.push_back(std::max(0.0, sum));
      a.same += best(p) == best(z);
    });
    bar.update(static_cast<double>(i + 1), static_cast<double>(answers.windows.size()));
  }
}

// One stream: the first window as a prompt, then tokens one by one.
void time_it(const Opened& opened, const ArtefactOptions& o, const std::vector<Token>& window, Artefact& a) {
  const auto n = static_cast<int32_t>(window.size());
  Feeder feeder(opened, o.rows(), flag_formats(o.cache, opened, o.window),
                std::min(opened.model->spec.context, n + o.generate));
  for (const bool counts : {false, true}) {  // the first run warms up
    Sequence sequence(feeder.stepper().pages());
    Token token = 0;
    const auto pick = [&](int32_t, std::span<const float> z) { token = static_cast<Token>(best(z)); };
    auto began = std::chrono::steady_clock::now();
    feeder.feed(sequence, window, n - 1, pick);
    if (counts) a.prompt_tps = n / seconds_since(began);
    began = std::chrono::steady_clock::now();
    const int32_t steps = std::min(o.generate, opened.model->spec.context - n);
    for (int32_t i = 0; i < steps; ++i) feeder.feed(sequence, std::span(&token, 1), 0, pick);
    if (counts && steps > 0) a.decode_tps = steps / seconds_since(began);
  }
}

void draft(const Opened& opened, const ArtefactOptions& o, Artefact& a) {
  if (o.prompts.empty()) return;
  EngineConfig config = o.cache;
  config.context = std::max(o.window, 2048);
  config.sequences = 1;
  SpecBed bed(o.spec, opened, config);
  if (bed.drafters().empty())
    throw Error("no drafter", "name one with --spec, for example --spec mtp -md FILE");
  const SpecSetting setting = bed.setting(bed.drafters()[0], o.depth);
  SpecStats all;
  double steps = 0, tokens = 0;
  SampleParams greedy;
  greedy.temperature = 0;
  for (const PromptSet& set : read_prompts(o.prompts, {}, opened)) {
    const SpecStats s = bed.run(setting, set.prompts, 0, set.ends, greedy, 128, 1).stats;
    tokens += s.accepted_length() * static_cast<double>(set.prompts.size());
    steps += static_cast<double>(set.prompts.size());
  }
  a.al = steps > 0 ? tokens / steps : 0;
}

std::string stored_as(const std::string& path) {
  const auto source = open_source(path);
  if (const std::string s = source->meta().get_string_or("general.quantization", ""); !s.empty()) return s;
  std::map<DType, size_t> bytes;
  for (const TensorInfo& t : source->tensors()) bytes[t.type] += t.bytes;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](auto& x, auto& y) { return x.second < y.second; });
  return std::string(info(most->first).name);
}

struct Column {
  const char* name;
  std::string (*text)(const Artefact&);
};
constexpr auto kUnknown = "-";
const Column kColumns[] = {
    {"KLD mean",
     [](const Artefact& a) { return a.kl.empty() ? kUnknown : fmt::format("{:.6f}", a.kl_mean()); }},
    {"KLD 99.9 %",
     [](const Artefact& a) { return a.kl.empty() ? kUnknown : fmt::format("{:.5f}", a.kl_at(0.999)); }},
    {"same top",
     [](const Artefact& a) { return a.kl.empty() ? kUnknown : fmt::format("{:.2f} %", 100 * a.same_top()); }},
    {"perplexity", [](const Artefact& a) { return fmt::format("{:.4f}", a.ppl()); }},
    {"size", [](const Artefact& a) { return human_bytes(a.bytes); }},
    {"prompt tok/s", [](const Artefact& a) { return fmt::format("{:.1f}", a.prompt_tps); }},
    {"decode tok/s", [](const Artefact& a) { return fmt::format("{:.1f}", a.decode_tps); }},
    {"AL", [](const Artefact& a) { return a.al > 0 ? fmt::format("{:.2f}", a.al) : kUnknown; }},
};

std::string escape(const std::string& s) {
  std::string out;
  for (const char c : s) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string html(const std::vector<Artefact>& all, const std::string& base) {
  std::string out =
      "<!doctype html><meta charset=\"utf-8\"><title>Artefacts</title><style>body{font:15px "
      "system-ui;margin:2em}"
      "td,th{padding:.3em .8em;text-align:right;border-bottom:1px solid "
      "#ccc}td:nth-child(-n+2),th:nth-child(-n+2)"
      "{text-align:left}</style>";
  out += fmt::format("<h1>Artefacts against {}</h1><table><tr><th>artefact<th>stored as", escape(base));
  for (const Column& c : kColumns) out += fmt::format("<th>{}", c.name);
  for (const Artefact& a : all) {
    out += fmt::format("<tr><td>{}<td>{}", escape(a.name), escape(a.stored));
    for (const Column& c : kColumns) out += fmt::format("<td>{}", c.text(a));
  }
  return out + "</table>\n";
}

void print(const Artefact& a, bool first) {
  if (first) {
    fmt::print("{:32}", "artefact");
    for (const Column& c : kColumns) fmt::print(" {:>12}", c.name);
    fmt::print("  stored as\n");
  }
  fmt::print("{:32}", a.name);
  for (const Column& c : kColumns) fmt::print(" {:>12}", c.text(a));
  fmt::print("  {}\n", a.stored);
  std::fflush(stdout);
}

Record record_of(const Measurement& m, const Artefact& a, const ArtefactOptions& o) {
  Record r = m.begin(a.name);
  r["settings"]["against"] = o.open.model;
  r["settings"]["text"] = o.text.empty() ? o.tokens : o.text;
  r["settings"]["ctx"] = o.window;
  r["settings"]["stored"] = a.stored;
  Record& f = r["figures"];
  f["bytes"] = a.bytes, f["ppl"] = a.ppl(), f["prefill_tps"] = a.prompt_tps, f["decode_tps"] = a.decode_tps;
  if (!a.kl.empty()) {
    f["kld"] = a.kl_mean();
    f["kld_summary"] = {{"positions", a.kl.size()}, {"mean", a.kl_mean()}, {"median", a.kl_at(0.5)},
                        {"p999", a.kl_at(0.999)},   {"max", a.kl_at(1)},   {"same_top", a.same_top()}};
  }
  if (a.al > 0) f["al"] = a.al;
  return r;
}

void eval_artefacts(ArtefactOptions& o) {
  o.score_all = true;
  Measurement m(o.measure, "artefacts");
  Answers answers;
  std::vector<Artefact> all;
  std::vector<std::string> paths{o.open.model};
  paths.insert(paths.end(), o.models.begin(), o.models.end());
  for (size_t i = 0; i < paths.size(); ++i) {
    OpenOptions open = o.open;
    open.model = paths[i];
    const Opened opened = open_model(open);
    m.opened(opened);
    Artefact a;
    std::filesystem::path path(paths[i]);
    a.name = (path.has_filename() ? path : path.parent_path()).filename().string();
    a.stored = stored_as(paths[i]);
    a.bytes = bytes_of(paths[i]);
    if (i == 0) answers.windows = windows_of(o, opened);
    if (i > 0 &&
        static_cast<size_t>(opened.model->spec.vocab) * answers.windows[0].size() != answers.log_p[0].size())
      throw Error(fmt::format("'{}' has another vocabulary than '{}'", paths[i], paths[0]));
    score(opened, o, answers, i == 0, a);
    time_it(opened, o, answers.windows[0], a);
    draft(opened, o, a);
    if (m.prints_table()) print(a, i == 0);
    m.add(record_of(m, a, o));
    all.push_back(std::move(a));
  }
  if (!o.html.empty()) {
    AtomicFile f(o.html);
    f.write(html(all, all[0].name));
    f.commit();
  }
  m.finish();
}

}  // namespace

void add_eval_artefacts(CLI::App& eval) {
  auto o = std::make_shared<ArtefactOptions>();
  CLI::App* a = eval.add_subcommand(
      "artefacts",
      "One model from several publishers: divergence from its full weights, size, speed, drafts");
  add_eval_common(*a, *o);
  a->remove_option(a->get_option("--model"));
  a->add_option("models", o->models, "Directories and .gguf files")->required();
  a->add_option("--against", o->open.model, "The weights that all come from")->required();
  add_eval_windows(*a, *o);
  add_spec_flags(*a, o->spec);
  a->add_option("--prompts", o->prompts, "With --spec: JSON file of prompts that the drafter is tried on");
  a->add_option("--depth", o->depth, "Drafted tokens a step")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  a->add_option("-n,--n-gen", o->generate, "Tokens of the timed generation")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  a->add_option("--html", o->html, "Write the table as a page, too");
  a->callback([o] {
    if (o->text.empty() && o->tokens.empty())
      throw Error("no text", "give one with -f FILE or --tokens FILE.json");
    eval_artefacts(*o);
  });
}

}  // namespace carat
