// carat promote: tries a candidate beside what serves and puts it in its place if it is fit
// (docs/promotion.md).
#include <fmt/format.h>
#include <httplib.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/cli_measure.h"
#include "apps/server_address.h"
#include "apps/sweep.h"
#include "base/error.h"
#include "measure/record.h"
#include "serve/promotion_state.h"

namespace carat {
namespace {

struct PromoteOptions {
  std::string directory, action = "start", gates = "promotion", canary = "0", rules, key, why;
  std::string model, drafter, min_same = "0";
  std::vector<std::string> flags;
  double min_speed = 0.9, minutes = 60;
  int64_t requests = 0;
  bool shadow = false, stay = false, json = false;
};

class Server {
 public:
  explicit Server(const PromoteOptions& o) : at_(promotion_server(o.directory)) {}
  Json status() const { return said(client().Get("/promotion", headers())); }
  Json act(const Json& body) const {
    return said(client().Post("/promotion", headers(), body.dump(), "application/json"));
  }
  const std::string& url() const { return at_.url; }

 private:
  httplib::Client client() const {
    httplib::Client c = client_of(server_address(at_.url), "");
    c.enable_server_certificate_verification(false);  // the key file says which server it is
    return c;
  }
  httplib::Headers headers() const { return {{"Carat-Promotion-Key", at_.key}}; }
  Json said(const httplib::Result& r) const {
    if (!r)
      throw Error(fmt::format("{} does not answer: {}", at_.url, httplib::to_string(r.error())),
                  "is the server running that keeps its versions there?");
    if (r->status != 200) throw Error(refusal_of(r->status, r->body));
    return Json::parse(r->body);
  }
  const PromotionServer at_;
};

std::string flags_of(const Json& status, int64_t id) {
  for (const Json& v : status["versions"])
    if (v["id"] == id) {
      std::string out;
      for (const Json& f : v["flags"]) out += (out.empty() ? "" : " ") + f.get<std::string>();
      return out;
    }
  return "";
}

void print_status(const Json& s) {
  for (const char* role : {"serving", "candidate", "fallback"}) {
    const auto id = s[role].get<int64_t>();
    if (id == 0) {
      fmt::print("{:<10} none\n", role);
      continue;
    }
    std::string state =
        s["opening"] == id ? fmt::format("opening, {:.0f} %", 100 * s["progress"].get<double>()) : "not open";
    if (s["open"].contains(role)) {
      const Json& o = s["open"][role];
      state = fmt::format("{} answers, {} failed, {:.1f} tok/s", o["requests"].get<int64_t>(),
                          o["errors"].get<int64_t>(), o["tok_s"].get<double>());
    }
    fmt::print("{:<10} version {}: {}\n           {}\n", role, id, state, flags_of(s, id));
  }
  const Json& c = s["compared"];
  if (s["candidate"] == 0) return;
  if (s["canary"] > 0) fmt::print("canary     {:.1f} % of conversations\n", 100 * s["canary"].get<double>());
  if (s["shadow"] == true)
    fmt::print(
        "shadow     {} answers the same, {} others ({:.1f} % of their text is the same), {} failed, {} "
        "left out\n",
        c["same"].get<int64_t>(), c["other"].get<int64_t>(), 100 * c["shared"].get<double>(),
        c["failed"].get<int64_t>(), c["dropped"].get<int64_t>());
}

void print_history(const Json& s) {
  for (const Json& h : s["history"])
    fmt::print("{}  {:<11}  version {}{}\n", h["time"].get<std::string>(), h["event"].get<std::string>(),
               h["version"].get<int64_t>(), h.contains("why") ? ": " + h["why"].get<std::string>() : "");
}

// A suite asked of one version by `carat gate`.
struct Gated {
  std::vector<std::string> faults;
  double tok_s = 0;
};
Gated run_gates(const PromoteOptions& o, const Server& server, const std::string& version) {
  std::vector<std::string> arguments{
      "carat", "gate", o.gates, "--url", server.url(), "--header", "Carat-Version: " + version, "--json"};
  if (!o.key.empty()) arguments.insert(arguments.end(), {"--api-key", o.key});
  const auto [out, rc] = output_of(arguments);
  const Record records = Record::parse(out, nullptr, false);
  if (!records.is_array() || records.empty())
    throw Error(fmt::format("the gates '{}' could not be run", o.gates), "its own error stands above");
  Gated g;
  for (const Record& r : records) {
    const std::string name = r["settings"].value("case", "");
    if (name == "limits") g.tok_s = r["figures"].value("decode_tps", 0.0);
    for (const Record& f : r["figures"]["faults"]) g.faults.push_back(name + ": " + f.get<std::string>());
  }
  if (rc != 0 && g.faults.empty()) g.faults.emplace_back("the gates failed");
  return g;
}

class Trial {
 public:
  Trial(const PromoteOptions& o, const Server& server) : o_(o), server_(server) {}

  void run() {
    Json s = server_.act({{"action", "start"},
                          {"flags", o_.flags},
                          {"canary", parse_share(o_.canary)},
                          {"shadow", o_.shadow},
                          {"rollback_on", o_.rules}});
    id_ = s["candidate"].get<int64_t>();
    say(fmt::format("version {} is being opened", id_));
    wait_open();
    if (o_.gates != "none") gates();
    if (o_.requests > 0) traffic();
    if (o_.stay) {
      say(fmt::format("version {} stays beside version {}; `carat promote accept` or `cancel` decides", id_,
                      server_.status()["serving"].get<int64_t>()));
      return;
    }
    server_.act({{"action", "promote"}, {"why", passed_}});
    say(fmt::format("version {} serves", id_));
    if (o_.gates != "none") again();
  }

 private:
  static void say(const std::string& text) { fmt::print(stderr, "{}\n", text); }

  // Error if the server took the candidate away.
  Json look() const {
    Json s = server_.status();
    if (s["candidate"] == id_) return s;
    std::string why = "it was taken away";
    for (const Json& h : s["history"])
      if (h["version"] == id_ && h.contains("why")) why = h["why"].get<std::string>();
    throw Error(fmt::format("version {} is no candidate any more: {}", id_, why));
  }

  void wait_open() const {
    while (!look()["open"].contains("candidate")) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  [[noreturn]] void refuse(const std::string& why) const {
    server_.act({{"action", "cancel"}, {"why", why}});
    throw Error(fmt::format("version {} is not promoted: {}", id_, why));
  }

  void gates() {
    const Gated now = run_gates(o_, server_, "serving"), then = run_gates(o_, server_, "candidate");
    for (const std::string& f : then.faults) say("gates: " + f);
    if (!then.faults.empty()) refuse(fmt::format("gates: {}", then.faults.front()));
    if (then.tok_s < o_.min_speed * now.tok_s)
      refuse(fmt::format("{:.1f} tok/s, {:.0f} % of the {:.1f} of what serves", then.tok_s,
                         100 * then.tok_s / now.tok_s, now.tok_s));
    passed_ =
        fmt::format("gates '{}' passed at {:.1f} tok/s, before {:.1f}", o_.gates, then.tok_s, now.tok_s);
    say(passed_);
  }

  // Until the candidate has answered so many requests, or copies of them.
  void traffic() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(60 * o_.minutes);
    for (;;) {
      const Json s = look(), c = s["compared"];
      const int64_t same = c["same"], all = same + c["other"].get<int64_t>() + c["failed"].get<int64_t>();
      const int64_t seen = o_.shadow ? all : s["open"]["candidate"]["requests"].get<int64_t>();
      if (seen >= o_.requests) {
        const double least = parse_share(o_.min_same),
                     share = all ? static_cast<double>(same) / static_cast<double>(all) : 1;
        if (o_.shadow && share < least)
          refuse(fmt::format("{:.1f} % of its answers are the same, at least {:.1f} %", 100 * share,
                             100 * least));
        return;
      }
      if (std::chrono::steady_clock::now() > until)
        refuse(fmt::format("{} of {} requests came in {:g} minutes", seen, o_.requests, o_.minutes));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }

  // What passed beside the other version has to pass alone.
  void again() const {
    const Gated g = run_gates(o_, server_, "serving");
    if (g.faults.empty()) return;
    server_.act({{"action", "rollback"}, {"why", "gates: " + g.faults.front()}});
    throw Error(fmt::format("version {} was rolled back: {}", id_, g.faults.front()));
  }

  const PromoteOptions& o_;
  const Server& server_;
  int64_t id_ = 0;
  std::string passed_;
};

void promote(PromoteOptions& o) {
  const Server server(o);
  if (o.action == "start") {
    if (o.model.empty())
      throw Error("no candidate is given", "carat promote --dir DIR -m FILE [flags of serve]");
    // The server has another directory than this command.
    o.flags.insert(o.flags.begin(), {"-m", std::filesystem::absolute(o.model).lexically_normal().string()});
    if (!o.drafter.empty())
      o.flags.insert(o.flags.end(),
                     {"-md", std::filesystem::absolute(o.drafter).lexically_normal().string()});
    parse_share(o.min_same), parse_rules(o.rules);
    return Trial(o, server).run();
  }
  if (!o.flags.empty() || !o.model.empty())
    throw Error(fmt::format("`carat promote {}` takes no candidate", o.action));
  Json s;
  if (o.action == "status" || o.action == "history")
    s = server.status();
  else
    s = server.act({{"action", o.action == "accept" ? "promote" : o.action},
                    {"why", o.why.empty() ? "by command" : o.why}});
  if (o.json)
    fmt::print("{}\n", s.dump(1));
  else if (o.action == "history")
    print_history(s);
  else
    print_status(s);
}

}  // namespace

void add_promote(CLI::App& app) {
  auto o = std::make_shared<PromoteOptions>();
  CLI::App* sub = app.add_subcommand(
      "promote", "Test another model or other settings beside the serving version, and switch if they pass");
  sub->add_option("--dir", o->directory, "The directory of the server's --promotions")->required();
  sub->add_option("-m,--model", o->model, "The candidate's file; flags of serve may stand behind it");
  sub->add_option("--model-draft,--spec-draft-model", o->drafter, "Its drafter (-md)");
  sub->add_option("--canary", o->canary, "Share of conversations that the candidate answers: 5%")
      ->capture_default_str();
  sub->add_flag("--shadow", o->shadow,
                "The candidate answers copies of requests; its answers are compared and discarded");
  sub->add_option("--gates", o->gates, "Suite that the candidate must pass (carat gate), or none")
      ->capture_default_str();
  sub->add_option("--min-speed", o->min_speed,
                  "Lowest speed in the gates, as a share of the serving version's")
      ->capture_default_str();
  sub->add_option("--requests", o->requests, "Requests that the candidate must answer before it is promoted")
      ->capture_default_str();
  sub->add_option("--min-same", o->min_same, "With --shadow: lowest share of equal answers")
      ->capture_default_str();
  sub->add_option("--minutes", o->minutes, "Minutes to wait for --requests")->capture_default_str();
  sub->add_option("--rollback-on", o->rules,
                  "Limits beyond which the server rolls back (default: "
                  "errors=5%,speed=50%,requests=20,minutes=60; none: never)");
  sub->add_flag("--stay", o->stay, "Decide nothing: the candidate stays beside the serving version");
  sub->add_option("--api-key", o->key, "The server's API key, for the gates");
  sub->add_option("--why", o->why, "Reason, kept in the history");
  sub->add_flag("--json", o->json, "Print the state as JSON");
  const auto action = [&](const char* name, const char* about) {
    CLI::App* one = sub->add_subcommand(name, about);
    one->fallthrough();
    one->callback([o, name] { o->action = name; });
  };
  action("status", "Which version serves, is tried and stands by");
  action("history", "What changed when, and why");
  action("accept", "Promote the candidate now");
  action("cancel", "Take the candidate away");
  action("rollback", "The version before serves again");
  sub->allow_extras();
  sub->fallthrough(false);
  sub->callback([o, sub] {
    o->flags = sub->remaining();
    promote(*o);
  });
}

}  // namespace carat
