#include "apps/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "apps/llama_flags_table.h"
#include "apps/measurement.h"
#include "apps/progress.h"
#include "base/error.h"
#include "base/file.h"
#include "measure/record.h"

namespace carat {
namespace {

struct Call {
  std::vector<std::string> command;  // without the program, and without what follows
  std::vector<Sweep> sweeps;
  int rounds = 1;
  bool json = false, csv = false;
  std::string folder;
};

bool is_own(const std::string& flag) {
  return flag == "--sweep" || flag == "--sweep-rounds" || flag == "--records";
}

// "threads": --threads; "m", "ctk": -m, -ctk, as llama.cpp and people call them.
std::string flag_of(const std::string& name) {
  bool brief = name.size() == 1;
  for (const LlamaFlag& flag : kLlamaFlags)
    brief |= fmt::format(",{},", flag.names).find(",-" + name + ",") != std::string::npos;
  return (brief ? "-" : "--") + name;
}

using Values = std::vector<std::pair<std::string, std::string>>;  // a value of every swept flag

int rounds_of(const std::string& text) {
  char* end = nullptr;
  const long n = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end || n < 1 || n > 1000)
    throw Error(fmt::format("--sweep-rounds {}", text), "a number from 1 to 1000");
  return static_cast<int>(n);
}

Call parse_call(int argc, char** argv) {
  Call c;
  for (int i = 1; i < argc; ++i) {
    std::string a = argv[i];
    std::optional<std::string> given;  // --flag=value
    if (const size_t eq = a.find('='); eq != std::string::npos && is_own(a.substr(0, eq)))
      given = a.substr(eq + 1), a.resize(eq);
    const auto value = [&]() -> std::string {
      if (given) return *given;
      if (i + 1 >= argc) throw Error(fmt::format("{} needs a value", a));
      return argv[++i];
    };
    if (a == "--sweep")
      c.sweeps.push_back(parse_sweep(value()));
    else if (a == "--sweep-rounds")
      c.rounds = rounds_of(value());
    else if (a == "--records")
      c.folder = value();
    else if (a == "--json")
      c.json = true;
    else if (a == "--csv")
      c.csv = true;
    else
      c.command.push_back(a);
  }
  return c;
}

std::vector<Values> all_values(const std::vector<Sweep>& sweeps) {
  std::vector<Values> all{{}};
  for (const Sweep& s : sweeps) {
    std::vector<Values> longer;
    for (const Values& v : all)
      for (const std::string& value : s.values)
        longer.push_back(v), longer.back().emplace_back(s.name, value);
    all = std::move(longer);
  }
  return all;
}

std::string text_of(const Values& v) {
  std::string s;
  for (const auto& [name, value] : v) s += fmt::format("{}{}={}", s.empty() ? "" : " ", name, value);
  return s;
}

double figure(const Record& r, const std::string& name) {
  const Record::json_pointer at("/figures/" + name);
  return r.contains(at) && r.at(at).is_number() ? r.at(at).get<double>() : NAN;
}

// The figure that a record is about.
std::string subject(const Record& r) {
  for (const char* name : {"decode_tps", "ppl", "kld", "prefill_tps", "al", "output_throughput", "total_gib"})
    if (!std::isnan(figure(r, name)) && !(std::string(name) == "decode_tps" && r.value("kind", "") == "ppl"))
      return name;
  return "wall_s";
}

struct Line {
  std::string values, config, subject;
  std::vector<double> seen;
  double al = NAN, rate = NAN, joules = NAN;
  double low = NAN, high = NAN;  // of the repetitions of the last round
  // How far apart rounds lie; of one alone, its repetitions.
  bool by_repetition() const { return seen.size() == 1 && low <= seen[0] && seen[0] <= high; }
  double least() const { return by_repetition() ? low : quantile(seen, 0); }
  double most() const { return by_repetition() ? high : quantile(seen, 1); }
};

void print(const std::vector<Record>& all) {
  std::vector<Line> lines;
  std::map<std::string, size_t> at, first;  // of values and config; of config alone
  for (const Record& r : all) {
    const std::string values = r["settings"].value("sweep", ""), config = r["settings"].value("config", "");
    const auto [it, fresh] = at.try_emplace(values + "|" + config, lines.size());
    if (fresh)
      lines.push_back({values,
                       config,
                       subject(r),
                       {},
                       figure(r, "al"),
                       figure(r, "accept_rate"),
                       figure(r, "decode_j_per_tok")});
    first.try_emplace(config, it->second);
    Line& line = lines[it->second];
    line.seen.push_back(figure(r, line.subject));
    line.low = figure(r, "tok_s/min"), line.high = figure(r, "tok_s/max");
  }
  const auto or_dash = [](double v, int digits) {
    return std::isnan(v) ? std::string("-") : fmt::format("{:.{}f}", v, digits);
  };
  fmt::print("| {:<28} | {:<30} | {:<11} | {:>10} | {:>19} | {:>9} | {:>6} | {:>8} | {:>7} |\n", "swept",
             "config", "figure", "median", "low .. high", "to first", "AL", "accepted", "J/token");
  fmt::print("| {:-<28} | {:-<30} | {:-<11} | {:->9}: | {:->18}: | {:->8}: | {:->5}: | {:->7}: | {:->6}: |\n",
             "", "", "", "", "", "", "", "", "");
  for (const Line& l : lines) {
    const Line& base = lines[first[l.config]];
    const double low = l.least(), high = l.most(), m = quantile(l.seen, 0.5);
    const bool same = &l != &base && high > low && low <= base.most() && high >= base.least();
    const std::string against = &l == &base ? ""
                                : same      ? "same"
                                       : fmt::format("{:+.1f} %", 100 * (m / quantile(base.seen, 0.5) - 1));
    fmt::print(
        "| {:<28} | {:<30} | {:<11} | {:>10.3f} | {:>8.3f} .. {:>7.3f} | {:>9} | {:>6} | {:>8} | {:>7} |\n",
        l.values, l.config, l.subject, m, low, high, against, or_dash(l.al, 2), or_dash(l.rate, 3),
        or_dash(l.joules, 3));
  }
}

int sweep(const Call& c) {
  const std::vector<Values> combinations = all_values(c.sweeps);
  std::vector<Record> all;
  int failed = 0;
  {
    ProgressBar bar("sweeping", "runs");
    const auto runs = static_cast<double>(combinations.size()) * c.rounds;
    for (int round = 0; round < c.rounds; ++round)
      for (size_t i = 0; i < combinations.size(); ++i) {
        const Values& v = combinations[round % 2 ? combinations.size() - 1 - i : i];
        std::vector<std::string> arguments{"carat"};
        arguments.insert(arguments.end(), c.command.begin(), c.command.end());
        for (const auto& [name, value] : v) arguments.push_back(flag_of(name)), arguments.push_back(value);
        arguments.emplace_back("--json");
        const auto [out, rc] = output_of(arguments);
        Record records = Record::parse(out, nullptr, false);
        if (rc != 0 || !records.is_array()) {
          std::fprintf(stderr, "%s failed\n", text_of(v).c_str());
          ++failed;
          continue;
        }
        for (Record& r : records) {
          r["settings"]["sweep"] = text_of(v), r["settings"]["round"] = round;
          all.push_back(std::move(r));
        }
        bar.update(static_cast<double>(round) * static_cast<double>(combinations.size()) +
                       static_cast<double>(i) + 1,
                   runs);
      }
  }
  if (c.json) fmt::print("{}\n", Record(all).dump(1));
  if (c.csv) {
    fmt::print("sweep,{}\n", csv_header());
    for (const Record& r : all) fmt::print("{},{}\n", r["settings"].value("sweep", ""), csv_line(r));
  }
  if (!c.json && !c.csv && !all.empty()) print(all);
  if (!c.folder.empty() && !all.empty()) {
    std::filesystem::create_directories(c.folder);
    std::string time = utc_now();
    std::erase(time, ':');
    AtomicFile file(fmt::format("{}/{}-sweep-{}.json", c.folder, time, ::getpid()));
    file.write(Record(all).dump(1) + "\n");
    file.commit();
  }
  return failed ? 1 : 0;
}

}  // namespace

std::pair<std::string, int> output_of(const std::vector<std::string>& arguments) {
  int pipe[2];
  if (::pipe(pipe) != 0) throw Error("no pipe");
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], 1);
    ::close(pipe[0]), ::close(pipe[1]);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  std::string out;
  char buffer[65536];
  for (ssize_t n; (n = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {out, WIFEXITED(status) ? WEXITSTATUS(status) : 1};
}

Sweep parse_sweep(const std::string& text) {
  const size_t eq = text.find('=');
  Sweep s{text.substr(0, eq), {}};
  for (size_t at = eq; at != std::string::npos && at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    if (end > at + 1) s.values.push_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  while (s.name.starts_with('-')) s.name.erase(0, 1);
  if (s.name.empty() || s.values.empty())
    throw Error(fmt::format("--sweep {}: no values", text), "give them like --sweep draft-p-min=0,0.3,0.6");
  return s;
}

std::optional<int> run_sweep(int argc, char** argv) {
  bool asked = false;
  for (int i = 1; i < argc; ++i)
    asked |= std::string(argv[i]) == "--sweep" || std::string(argv[i]).starts_with("--sweep=");
  if (!asked) return {};
  try {
    return sweep(parse_call(argc, argv));
  } catch (const Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    if (!e.hint().empty()) std::fprintf(stderr, "hint: %s\n", e.hint().c_str());
    return 1;
  }
}

}  // namespace carat
