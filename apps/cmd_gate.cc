// carat gate SUITE: whether a model, a drafter and settings are fit to serve. A suite is one file of prompts,
// checks and limits (docs/gates.md); it asks a running server or one that is started for a file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <filesystem>

#include "apps/chat_server.h"
#include "apps/cli_measure.h"
#include "apps/measurement.h"
#include "apps/progress.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/checks.h"
#include "media/data_url.h"

namespace carat {
namespace {

struct GateOptions {
  std::string suite, model, url, key, name, baseline, junit;
  double min_tok_s = 0, min_acceptance = 0, min_speed = 0.9;
  std::vector<std::string> only, flags, headers;
  MeasureFlags measure;
};

struct Outcome {
  std::string name;
  std::vector<std::string> faults;
  double seconds = 0, tokens = 0, decode_seconds = 0, drafted = 0, accepted = 0;
  std::string answer;
  double tok_s() const { return decode_seconds > 0 ? tokens / decode_seconds : 0; }
};

Record read_suite(const std::string& given) {
  std::string path = given;
  if (!std::filesystem::exists(path) && std::filesystem::exists("share/gates/" + given + ".json"))
    path = "share/gates/" + given + ".json";
  Record suite = Record::parse(read_file(path, size_t{16} << 20), nullptr, false);
  if (!suite.is_object() || !suite.contains("cases"))
    throw Error(fmt::format("'{}' is no suite", path),
                R"(expected {"cases": [{"name", "prompt", "checks"}]})");
  return suite;
}

// Sentences up to about that many tokens, a fact at half of the depth, the question behind.
std::string needle_prompt(const Record& n) {
  static constexpr std::string_view kFiller[] = {
      "The morning was cold and the street was quiet. ", "The baker put the bread in the window. ",
      "A dog barked somewhere in the dark. ", "The train was late, as it often was in winter. ",
      "She closed the book and looked out of the window. "};
  const auto bytes = static_cast<size_t>(4 * n.value("tokens", 1024));
  std::string text = "Read this text.\n\n";
  bool hidden = false;
  for (size_t i = 0; text.size() < bytes; ++i) {
    if (!hidden && text.size() > bytes / 2) text += n.at("fact").get<std::string>() + " ", hidden = true;
    text += kFiller[i % std::size(kFiller)];
  }
  return text + "\n\n" + n.at("question").get<std::string>();
}

std::string base64_of(const std::string& path) {
  const std::string bytes = read_file(path, size_t{64} << 20);
  return encode_base64({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// A message with a picture or a sound before its words, as OpenAI's API has them.
Record content_of(const Record& c, const std::string& text) {
  Record parts = Record::array();
  if (c.contains("image"))
    parts.push_back(
        {{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64," + base64_of(c["image"])}}}});
  if (c.contains("audio"))
    parts.push_back(
        {{"type", "input_audio"}, {"input_audio", {{"data", base64_of(c["audio"])}, {"format", "wav"}}}});
  if (parts.empty()) return text;
  parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

class Gate {
 public:
  Gate(const ChatServer& server, const Record& suite, const GateOptions& o)
      : server_(server), suite_(suite), o_(o) {}

  Outcome run(const Record& c) {
    Outcome out;
    out.name = c.at("name").get<std::string>();
    const auto began = std::chrono::steady_clock::now();
    try {
      converse(c, out);
    } catch (const Error& e) {
      out.faults.emplace_back(e.what());
    } catch (const Record::exception& e) {
      throw Error(fmt::format("case '{}': {}", out.name, e.what()), "docs/gates.md says what a case holds");
    }
    out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    if (const double floor = c.value("min_tok_s", 0.0); floor > 0 && out.tok_s() < floor)
      out.faults.push_back(fmt::format("{:.1f} tok/s, at least {:.1f} were asked for", out.tok_s(), floor));
    return out;
  }

 private:
  void converse(const Record& c, Outcome& out) {
    Record messages = Record::array();
    if (c.contains("system")) messages.push_back({{"role", "system"}, {"content", c["system"]}});
    std::vector<std::string> turns;
    if (c.contains("needle"))
      turns.push_back(needle_prompt(c["needle"]));
    else if (c.contains("turns"))
      for (int i = 0; i < c["turns"].get<int>(); ++i)
        turns.push_back(c.at("prompts")[static_cast<size_t>(i) % c["prompts"].size()].get<std::string>());
    else
      turns.push_back(c.at("prompt").get<std::string>());
    for (size_t t = 0; t < turns.size(); ++t) {
      messages.push_back(
          {{"role", "user"}, {"content", t == 0 ? content_of(c, turns[t]) : Record(turns[t])}});
      const GateAnswer a = ask(c, messages, out);
      messages.push_back({{"role", "assistant"}, {"content", a.content}});
      const std::string where = turns.size() > 1 ? fmt::format("turn {}: ", t + 1) : "";
      for (const std::string& fault : always_failed(a)) out.faults.push_back(where + fault);
      if (!c.value("loops", false))
        if (const auto f = loops(a.content)) out.faults.push_back(where + *f);
      for (const Record& check : c.value("checks", Record::array()))
        if (const auto f = failed_check(check, a)) out.faults.push_back(where + *f);
      out.answer = a.content;
    }
    if (c.contains("needle") &&
        out.answer.find(c["needle"].at("answer").get<std::string>()) == std::string::npos)
      out.faults.push_back(
          fmt::format("'{}' was not found: {}", c["needle"]["answer"].get<std::string>(), out.answer));
  }

  GateAnswer ask(const Record& c, const Record& messages, Outcome& out) {
    Record body = {{"model", server_.model()},
                   {"messages", messages},
                   {"max_tokens", c.value("max_tokens", suite_.value("max_tokens", 256))},
                   {"temperature", c.value("temperature", suite_.value("temperature", 0.0))}};
    for (const char* key : {"tools", "tool_choice", "response_format", "seed", "enable_thinking"})
      if (c.contains(key)) body[key] = c[key];
    if (!c.contains("enable_thinking") && suite_.contains("enable_thinking"))
      body["enable_thinking"] = suite_["enable_thinking"];
    const auto began = std::chrono::steady_clock::now();
    const Record r = server_.post("/chat/completions", body);
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const Record choice = r.at("choices").at(0), message = choice.at("message");
    GateAnswer a;
    const auto text = [&](const char* key) {
      return message.contains(key) && message[key].is_string() ? message[key].get<std::string>()
                                                               : std::string();
    };
    a.content = text("content"), a.thinking = text("reasoning_content");
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
      a.finish = choice["finish_reason"];
    if (message.contains("tool_calls") && message["tool_calls"].is_array())
      a.tool_calls = message["tool_calls"];
    const Record t = r.value("timings", Record::object());  // of Carat and llama.cpp; others' by the clock
    out.tokens += t.value("predicted_n", r.value("usage", Record::object()).value("completion_tokens", 0.0));
    out.decode_seconds += t.contains("predicted_ms") ? t["predicted_ms"].get<double>() / 1e3 : wall;
    out.drafted += t.value("draft_n", 0.0), out.accepted += t.value("draft_n_accepted", 0.0);
    return a;
  }

  const ChatServer& server_;
  const Record& suite_;
  const GateOptions& o_;
};

// Limits of all cases together: a drafter that is right too seldom, a build that is slower than a record.
Outcome limits(const std::vector<Outcome>& all, const Record& suite, const GateOptions& o, double before) {
  Outcome out;
  out.name = "limits";
  double tokens = 0, seconds = 0, drafted = 0, accepted = 0;
  for (const Outcome& c : all)
    tokens += c.tokens, seconds += c.decode_seconds, drafted += c.drafted, accepted += c.accepted;
  out.tokens = tokens, out.decode_seconds = seconds, out.drafted = drafted, out.accepted = accepted;
  const Record l = suite.value("limits", Record::object());
  const double floor = std::max(o.min_tok_s, l.value("min_tok_s", 0.0));
  if (out.tok_s() < floor)
    out.faults.push_back(fmt::format("{:.1f} tok/s, at least {:.1f}", out.tok_s(), floor));
  const double rate = drafted > 0 ? accepted / drafted : 0,
               least = std::max(o.min_acceptance, l.value("min_acceptance", 0.0));
  if (least > 0 && rate < least)
    out.faults.push_back(
        drafted > 0 ? fmt::format("{:.1f} % of drafts are right, at least {:.1f} %", 100 * rate, 100 * least)
                    : std::string("nothing was drafted"));
  if (before > 0 && out.tok_s() < o.min_speed * before)
    out.faults.push_back(fmt::format("{:.1f} tok/s, {:.0f} % of the {:.1f} of {}", out.tok_s(),
                                     100 * out.tok_s() / before, before, o.baseline));
  return out;
}

// tok/s of all cases in a saved record of this command; 0 where none is asked for.
double baseline_speed(const GateOptions& o) {
  if (o.baseline.empty()) return 0;
  for (const Record& r : read_records(o.baseline))
    if (r.value("kind", "") == "gate" && r["settings"].value("case", "") == "limits")
      if (const double v = r["figures"].value("decode_tps", 0.0); v > 0) return v;
  throw Error(fmt::format("'{}' has no speed of carat gate", o.baseline),
              "--baseline takes a file that carat gate --records DIR wrote");
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  return out;
}

void write_junit(const std::string& path, const std::string& suite, const std::vector<Outcome>& all) {
  size_t failed = 0;
  std::string cases;
  for (const Outcome& c : all) {
    failed += !c.faults.empty();
    cases += fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">\n", escaped(suite),
                         escaped(c.name), c.seconds);
    for (const std::string& f : c.faults) cases += fmt::format("    <failure message=\"{}\"/>\n", escaped(f));
    cases += "  </testcase>\n";
  }
  AtomicFile file(path);
  file.write(fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\">\n{}"
      "</testsuite>\n",
      escaped(suite), all.size(), failed, cases));
  file.commit();
}

void print(const std::vector<Outcome>& all) {
  fmt::print("| {:<24} | {:<4} | {:>8} | {:>8} |\n| {:-<24} | {:-<4} | {:->7}: | {:->7}: |\n", "gate", "",
             "tok/s", "accepted", "", "", "", "");
  for (const Outcome& c : all)
    fmt::print("| {:<24} | {:<4} | {:>8.1f} | {:>8} |\n", c.name, c.faults.empty() ? "ok" : "FAIL", c.tok_s(),
               c.drafted > 0 ? fmt::format("{:.0f} %", 100 * c.accepted / c.drafted) : "-");
  for (const Outcome& c : all)
    for (const std::string& f : c.faults) fmt::print("{}: {}\n", c.name, f);
}

void add_records(Measurement& m, const std::vector<Outcome>& all, const std::string& suite,
                 const ChatServer& server, const GateOptions& o) {
  for (const Outcome& c : all) {
    Record r = m.begin(suite + " " + c.name);
    r["model"] = {{"name", server.model()}, {"path", o.model.empty() ? o.url : o.model}};
    r["settings"]["suite"] = suite, r["settings"]["case"] = c.name, r["settings"]["flags"] = o.flags;
    Record& f = r["figures"];
    f["passed"] = c.faults.empty(), f["faults"] = c.faults, f["wall_s"] = c.seconds;
    if (c.decode_seconds > 0) f["decode_tps"] = c.tok_s();
    if (c.drafted > 0)
      f["accept_rate"] = c.accepted / c.drafted, f["n_drafted"] = c.drafted, f["n_accept"] = c.accepted;
    if (!c.answer.empty() && !bad_utf8(c.answer)) f["answer"] = c.answer;
    m.add(std::move(r));
  }
}

// A name that no case has is no gate that was passed.
std::vector<Record> chosen_cases(const Record& suite, const std::vector<std::string>& only) {
  std::vector<Record> all(suite["cases"].begin(), suite["cases"].end());
  if (all.empty()) throw Error("the suite has no cases");
  if (only.empty()) return all;
  std::vector<std::string> names;
  for (const Record& c : all) names.push_back(c.value("name", ""));
  for (const std::string& name : only)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error(fmt::format("the suite has no case '{}'", name),
                  fmt::format("it has {}", fmt::join(names, ", ")));
  std::erase_if(all, [&](const Record& c) {
    return std::find(only.begin(), only.end(), c.value("name", "")) == only.end();
  });
  return all;
}

void run_gate(const GateOptions& o) {
  const Record suite = read_suite(o.suite);
  const std::string name = suite.value("name", std::filesystem::path(o.suite).stem().string());
  const std::vector<Record> cases = chosen_cases(suite, o.only);
  const double before = baseline_speed(o);
  Measurement m(o.measure, "gate");
  const auto server =
      o.url.empty() ? ChatServer::of_file(o.model, o.flags) : ChatServer::at(o.url, o.key, o.name, o.headers);
  std::vector<Outcome> all;
  {
    Gate gate(*server, suite, o);
    ProgressBar bar(name, "gates");
    for (const Record& c : cases) {
      all.push_back(gate.run(c));
      bar.update(static_cast<double>(all.size()), static_cast<double>(cases.size()));
    }
  }
  all.push_back(limits(all, suite, o, before));
  if (m.prints_table()) print(all);
  if (!o.junit.empty()) write_junit(o.junit, name, all);
  add_records(m, all, name, *server, o);
  m.finish();
  const auto failed =
      std::count_if(all.begin(), all.end(), [](const Outcome& c) { return !c.faults.empty(); });
  if (failed > 0) throw Error(fmt::format("{} of {} gates failed", failed, all.size()));
}

}  // namespace

void add_gate(CLI::App& app) {
  auto o = std::make_shared<GateOptions>();
  CLI::App* sub =
      app.add_subcommand("gate", "Check a model and its settings against a suite of prompts and limits");
  sub->add_option("suite", o->suite, "A file, or a name of share/gates: promotion, smoke, demo")->required();
  auto* model = sub->add_option("-m,--model", o->model, "Serve this file, with flags of serve behind it");
  auto* url = sub->add_option("--url", o->url, "Ask a running server (any with OpenAI's API)");
  url->excludes(model);
  sub->add_option("--api-key", o->key, "With --url: the server's API key")->needs(url);
  sub->add_option("--alias", o->name, "With --url: the model's name there (default: the first)")->needs(url);
  sub->add_option("--header", o->headers, "With --url: a further header of requests, 'Name: value'")
      ->needs(url);
  sub->add_option("--only", o->only, "Cases to run, comma-separated (default: all)")->delimiter(',');
  sub->add_option("--min-tok-s", o->min_tok_s, "Fail below this many tokens/s over all cases");
  sub->add_option("--min-acceptance", o->min_acceptance, "Fail below this share of accepted drafts (0 to 1)");
  auto* baseline = sub->add_option("--baseline", o->baseline,
                                   "Earlier record of this command: fail below --min-speed of its speed");
  sub->add_option("--min-speed", o->min_speed, "With --baseline: lowest share of its speed")
      ->needs(baseline)
      ->capture_default_str();
  sub->add_option("--junit", o->junit, "Write a JUnit file, too");
  add_measure_flags(*sub, o->measure);
  sub->allow_extras();
  sub->fallthrough(false);
  sub->callback([o, sub] {
    o->flags = sub->remaining();
    if (o->model.empty() && o->url.empty()) throw Error("nothing to ask", "give -m FILE or --url URL");
    if (!o->url.empty() && !o->flags.empty())
      throw Error(fmt::format("unknown argument '{}'", o->flags.front()),
                  "carat gate --help lists the flags");
    run_gate(*o);
  });
}

}  // namespace carat
