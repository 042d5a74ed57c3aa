#include "measure/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "measure/chart.h"

namespace carat {
namespace {

// A cell, and the number of the record that it was taken from (-1: none).
struct Cell {
  std::string text;
  int record = -1;
};
struct Table {
  std::string title, note;
  std::vector<std::string> head;
  std::vector<std::vector<Cell>> rows;
  bool words = false;  // long ones, which go over several lines
};

double figure(const Record& r, const char* pointer, double otherwise = NAN) {
  const Record::json_pointer at(pointer);
  return r.contains(at) && r.at(at).is_number() ? r.at(at).get<double>() : otherwise;
}
std::string word(const Record& r, const char* pointer) {
  const Record::json_pointer at(pointer);
  if (!r.contains(at)) return "";
  return r.at(at).is_string() ? r.at(at).get<std::string>() : r.at(at).dump();
}
std::string shown(double v, int digits, const char* unit = "") {
  return std::isnan(v) ? "-" : fmt::format("{:.{}f}{}", v, digits, unit);
}
std::string percent(double v) { return std::isnan(v) ? "-" : fmt::format("{:.1f} %", 100 * v); }
bool decodes(const Record& r) {
  return !std::isnan(figure(r, "/figures/decode_tps")) && word(r, "/kind") != "gate";
}
// What was measured, with the value that a sweep gave it and what else its name leaves out.
std::string config_of(const Record& r) {
  std::string s = word(r, "/settings/config");
  const std::string swept = word(r, "/settings/sweep");
  if (!swept.empty() && !swept.starts_with("model=")) s += ", " + swept;
  if (const double t = figure(r, "/settings/temperature"); t > 0 && swept.find("temp=") == swept.npos)
    s += fmt::format(", temperature {:g}", t);
  if (word(r, "/settings/estimated") == "true") s += " (estimated)";
  return s;
}
std::string label_of(const Record& r) { return word(r, "/model/name") + " " + config_of(r); }

std::string name_of_file(const std::string& path) { return path.substr(path.rfind('/') + 1); }
// To be set at the right: a figure, with its unit or without.
bool is_figure(const std::string& text) {
  const size_t first = text.find_first_not_of("+- ");
  return text == "-" || (first != text.npos && text[first] >= '0' && text[first] <= '9' &&
                         text.find_first_not_of("0123456789.+-% xe") == text.npos);
}

Table speeds(const std::vector<Record>& all) {
  Table t{"Speed and acceptance",
          "Median and p10 (a tenth of the runs is slower) of the repetitions.",
          {"model", "config", "KV", "context", "p10 tok/s", "median tok/s", "over plain", "tokens a step",
           "accepted", "first token ms", "J/token", "KV MiB"},
          {}};
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& r = all[i];
    if (std::isnan(figure(r, "/figures/tok_s/median"))) continue;
    const auto n = static_cast<int>(i);
    t.rows.push_back({{word(r, "/model/name")},
                      {config_of(r)},
                      {word(r, "/settings/kv")},
                      {word(r, "/settings/ctx")},
                      {shown(figure(r, "/figures/tok_s/p10"), 2), n},
                      {shown(figure(r, "/figures/tok_s/median"), 2), n},
                      {shown(figure(r, "/figures/speedup/median"), 2, "x")},
                      {shown(figure(r, "/figures/al"), 2)},
                      {percent(figure(r, "/figures/accept_rate"))},
                      {shown(figure(r, "/figures/first_tok_ms"), 1)},
                      {shown(figure(r, "/figures/decode_j_per_tok"), 3)},
                      {shown(figure(r, "/figures/kv_mib"), 1)}});
  }
  return t;
}

// Of `eval acceptance`: lines are drafters and kinds of text, columns depths.
Table by_depth(const std::vector<Record>& all) {
  Table t{"Tokens a step by depth",
          "Of eval acceptance: every depth reads the same prompts.",
          {"model", "text", "draft"},
          {}};
  std::set<int> depths;
  for (const Record& r : all)
    if (r["figures"].contains("al_by_depth"))
      for (const auto& [depth, v] : r["figures"]["al_by_depth"].items()) depths.insert(std::stoi(depth));
  for (const int d : depths) t.head.push_back(std::to_string(d));
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& r = all[i];
    if (!r["figures"].contains("al_by_depth")) continue;
    std::vector<Cell> row{
        {word(r, "/model/name")}, {word(r, "/settings/prompts")}, {word(r, "/settings/draft")}};
    for (const int d : depths)
      row.push_back(
          {shown(figure(r, fmt::format("/figures/al_by_depth/{}", d).c_str()), 2), static_cast<int>(i)});
    t.rows.push_back(std::move(row));
  }
  return t;
}

// One setting changed at a time, against the first of its sweep (OVAT).
Table one_at_a_time(const std::vector<Record>& all) {
  Table t{"One variable at a time",
          "Against the plain settings of the same run; within 3 %, or what repeating the same makes, there "
          "is no difference.",
          {"model", "change", "tok/s", "against plain", "J/token", "verdict"},
          {}};
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& r = all[i];
    if (word(r, "/kind") != "tune" || word(r, "/settings/stage") != "ovat") continue;
    const double ratio = figure(r, "/figures/ratio");
    t.rows.push_back(
        {{word(r, "/model/name")},
         {word(r, "/settings/config")},
         {shown(figure(r, "/figures/decode_tps", figure(r, "/figures/prefill_tps")), 2), static_cast<int>(i)},
         {std::isnan(ratio) ? "baseline" : fmt::format("{:+.1f} %", 100 * (ratio - 1))},
         {shown(figure(r, "/figures/decode_j_per_tok"), 3)},
         {word(r, "/figures/verdict")}});
  }
  return t;
}

Table regimes(const std::vector<Record>& all) {
  Table t{"Regime map",
          "The settings to serve with, by context and kind of text.",
          {"model", "context", "text", "settings", "tok/s", "J/token", "KV MiB", "KLD"},
          {}};
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& r = all[i];
    if (word(r, "/kind") != "regime") continue;
    t.rows.push_back({{word(r, "/model/name")},
                      {word(r, "/settings/ctx")},
                      {word(r, "/settings/prompts")},
                      {config_of(r)},
                      {shown(figure(r, "/figures/decode_tps"), 1), static_cast<int>(i)},
                      {shown(figure(r, "/figures/decode_j_per_tok"), 3)},
                      {shown(figure(r, "/figures/kv_mib"), 1)},
                      {shown(figure(r, "/figures/kld_over_floor"), 5)}});
  }
  return t;
}

Table perplexities(const std::vector<Record>& all) {
  Table t{"Perplexity", "", {"model", "KV", "text", "context", "stride", "perplexity", "+/-", "windows"}, {}};
  for (size_t i = 0; i < all.size(); ++i)
    if (const Record& r = all[i]; word(r, "/kind") == "ppl")
      t.rows.push_back(
          {{word(r, "/model/name")},
           {word(r, "/settings/kv")},
           {name_of_file(word(r, "/settings/text")) + (word(r, "/settings/chat") == "true" ? " (chat)" : "")},
           {word(r, "/settings/ctx")},
           {word(r, "/settings/stride")},
           {shown(figure(r, "/figures/ppl"), 4), static_cast<int>(i)},
           {shown(figure(r, "/figures/ppl_error"), 4)},
           {word(r, "/figures/windows")}});
  return t;
}

Table divergences(const std::vector<Record>& all) {
  Table t{"Divergence from the reference",
          "Over the floor: what the cache adds to what f16 caches show, too.",
          {"model", "KV", "context", "mean KLD", "floor", "over the floor", "99.9 %", "same top token"},
          {}};
  for (size_t i = 0; i < all.size(); ++i)
    if (const Record& r = all[i]; word(r, "/kind") == "kld")
      t.rows.push_back(
          {{word(r, "/model/name")},
           {word(r, r.contains("/settings/kv"_json_pointer) ? "/settings/kv" : "/settings/config")},
           {word(r, "/settings/ctx")},
           {shown(figure(r, "/figures/kld"), 6), static_cast<int>(i)},
           {shown(figure(r, "/figures/kld_floor"), 6)},
           {shown(figure(r, "/figures/kld_over_floor"), 6)},
           {shown(figure(r, "/figures/kld_summary/p999"), 5)},
           {percent(figure(r, "/figures/kld_summary/same_top"))}});
  return t;
}

Table plans(const std::vector<Record>& all) {
  Table t{"Memory of caches",
          "From shapes, exact; saving against FP16.",
          {"model", "context", "KV", "KV MiB", "saving", "weights GiB", "sum GiB"},
          {}};
  for (size_t i = 0; i < all.size(); ++i)
    if (const Record& r = all[i]; word(r, "/kind") == "plan")
      t.rows.push_back({{word(r, "/model/name")},
                        {word(r, "/settings/ctx")},
                        {word(r, "/settings/config")},
                        {shown(figure(r, "/figures/kv_mib"), 2), static_cast<int>(i)},
                        {percent(figure(r, "/figures/kv_saving"))},
                        {shown(figure(r, "/figures/weights_gib"), 2)},
                        {shown(figure(r, "/figures/total_gib"), 2)}});
  return t;
}

Table gates(const std::vector<Record>& all) {
  Table t{"Gates", "", {"model", "gate", "", "tok/s", "accepted", "what failed"}, {}};
  for (size_t i = 0; i < all.size(); ++i)
    if (const Record& r = all[i]; word(r, "/kind") == "gate") {
      std::string faults;
      for (const Record& f : r["figures"].value("faults", Record::array()))
        faults += (faults.empty() ? "" : "; ") + f.get<std::string>();
      t.rows.push_back({{word(r, "/model/name")},
                        {word(r, "/settings/config")},
                        {word(r, "/figures/passed") == "true" ? "ok" : "FAIL", static_cast<int>(i)},
                        {shown(figure(r, "/figures/decode_tps"), 1)},
                        {percent(figure(r, "/figures/accept_rate"))},
                        {faults}});
    }
  return t;
}

Table warnings(const std::vector<Record>& all) {
  Table t{"What to hold against these figures", "", {"records", "were"}, {}};
  size_t busy = 0;
  int first = -1;
  for (size_t i = 0; i < all.size(); ++i)
    if (!all[i].value("busy", Record::array()).empty()) {
      ++busy;
      if (first < 0) first = static_cast<int>(i);
    }
  if (busy > 0)
    t.rows.push_back({{fmt::format("{} of {}", busy, all.size()), first},
                      {"not measured on a quiet machine (state, busy)"}});
  return t;
}

Table given_table(const Record& given) {
  try {
    Table t{given.at("title").get<std::string>(), given.value("note", ""), {}, {}, true};
    for (const Record& h : given.at("head")) t.head.push_back(h.get<std::string>());
    for (const Record& row : given.at("rows")) {
      t.rows.emplace_back();
      for (const Record& cell : row) t.rows.back().push_back({cell.get<std::string>()});
    }
    return t;
  } catch (const Record::exception& e) {
    throw Error(fmt::format("this is no table: {}", e.what()),
                R"({"title": "", "head": [""], "rows": [[""]]})");
  }
}

std::vector<Table> tables_of(const std::vector<Record>& all, const Record& given) {
  std::vector<Table> tables;
  for (auto& make :
       {regimes, speeds, by_depth, one_at_a_time, perplexities, divergences, plans, gates, warnings})
    if (Table t = make(all); !t.rows.empty()) tables.push_back(std::move(t));
  for (const Record& t : given) tables.push_back(given_table(t));
  return tables;
}

struct Card {
  std::string big, what, about;
  int record;
};
std::vector<Card> headline(const std::vector<Record>& all) {
  std::vector<Card> cards;
  int fast = -1, lean = -1, right = 0, gate = -1, asked = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& r = all[i];
    const auto n = static_cast<int>(i);
    const auto better = [&](int than, const char* f, double sign) {
      const double v = figure(r, f);
      return !std::isnan(v) && (than < 0 || sign * v > sign * figure(all[static_cast<size_t>(than)], f));
    };
    if (decodes(r) && better(fast, "/figures/decode_tps", 1)) fast = n;
    if (decodes(r) && better(lean, "/figures/decode_j_per_tok", -1)) lean = n;
    if (word(r, "/kind") == "gate") gate = n, ++asked, right += word(r, "/figures/passed") == "true";
  }
  const auto at = [&](int i) -> const Record& { return all[static_cast<size_t>(i)]; };
  if (fast >= 0)
    cards.push_back(
        {shown(figure(at(fast), "/figures/decode_tps"), 1), "tok/s, the fastest", label_of(at(fast)), fast});
  if (lean >= 0)
    cards.push_back({shown(figure(at(lean), "/figures/decode_j_per_tok"), 3), "J/token, the leanest",
                     label_of(at(lean)), lean});
  if (gate >= 0) cards.push_back({fmt::format("{} of {}", right, asked), "gates passed", "", gate});
  return cards;
}

std::string link_to(int record) { return fmt::format("#r{}", record); }

// Lines of tokens a step over depth, one a model, drafter and kind of text.
std::vector<Series> acceptance(const std::vector<Record>& all) {
  std::map<std::string, Series> lines;
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& r = all[i];
    const std::string name = word(r, "/settings/prompts") + " " + word(r, "/settings/draft");
    const double dm = figure(r, "/settings/dm"), al = figure(r, "/figures/al");
    Series& s = lines[name];
    if (r["figures"].contains("al_by_depth"))
      for (const auto& [depth, v] : r["figures"]["al_by_depth"].items())
        s.points.push_back({std::stod(depth), v.get<double>(), name, link_to(static_cast<int>(i))});
    else if (dm > 0 && !std::isnan(al))
      s.points.push_back({dm, al, name, link_to(static_cast<int>(i))});
  }
  std::vector<Series> out;
  for (auto& [name, s] : lines) {
    if (s.points.empty()) continue;
    std::sort(s.points.begin(), s.points.end(),
              [](const Point& a, const Point& b) { return a.x < b.x || (a.x == b.x && a.y > b.y); });
    s.points.erase(std::unique(s.points.begin(), s.points.end(),  // the best of each depth
                               [](const Point& a, const Point& b) { return a.x == b.x; }),
                   s.points.end());
    s.name = name, s.colour = static_cast<int>(out.size());
    out.push_back(std::move(s));
  }
  return out;
}

std::vector<Series> by_place(const std::vector<Record>& all) {
  std::vector<Series> out;
  std::map<std::string, size_t> most;  // of runs with one name, that with most drafts
  for (size_t i = 0; i < all.size(); ++i) {
    const auto [at, fresh] = most.try_emplace(label_of(all[i]), i);
    if (!fresh && figure(all[i], "/figures/n_drafted", 0) > figure(all[at->second], "/figures/n_drafted", 0))
      at->second = i;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Record& f = all[i]["figures"];
    if (!f.contains("speculation") || out.size() >= 12 || most[label_of(all[i])] != i) continue;
    const Record places = f["speculation"].value("accepted_per_pos_given_previous", Record::array());
    if (places.size() < 2) continue;
    Series s{config_of(all[i]), {}, static_cast<int>(out.size())};
    for (size_t p = 0; p < places.size() && p < 16; ++p)
      s.points.push_back(
          {static_cast<double>(p + 1), places[p].get<double>(), s.name, link_to(static_cast<int>(i))});
    out.push_back(std::move(s));
  }
  return out;
}

// The value after every window, one line a cache.
std::vector<Series> cumulative(const std::vector<Record>& all) {
  std::vector<Series> out;
  for (size_t i = 0; i < all.size(); ++i) {
    const Record values = all[i]["figures"].value("cumulative_ppl", Record::array());
    if (values.size() < 2 || out.size() >= 12) continue;
    Series s{word(all[i], "/settings/kv"), {}, static_cast<int>(out.size())};
    for (size_t w = 0; w < values.size(); ++w)
      if (values[w].is_number())  // what has no end is null
        s.points.push_back(
            {static_cast<double>(w + 1), values[w].get<double>(), s.name, link_to(static_cast<int>(i))});
    if (!s.points.empty()) out.push_back(std::move(s));
  }
  return out;
}

std::string bars_of(const std::vector<Record>& all, const char* pointer, const std::string& title,
                    const std::string& unit, bool ascending) {
  std::vector<Bar> bars;
  std::map<std::string, int> colours;
  for (size_t i = 0; i < all.size(); ++i) {
    const double v = decodes(all[i]) ? figure(all[i], pointer) : NAN;
    if (std::isnan(v)) continue;
    const std::string kind = word(all[i], "/model/name") + word(all[i], "/settings/prompts");
    const int colour = colours.try_emplace(kind, static_cast<int>(colours.size())).first->second;
    bars.push_back({label_of(all[i]), link_to(static_cast<int>(i)), v, colour, false});
  }
  if (bars.empty()) return "";
  std::sort(bars.begin(), bars.end(),
            [&](const Bar& a, const Bar& b) { return ascending ? a.value < b.value : a.value > b.value; });
  bars.front().starred = true;
  if (bars.size() > 40) bars.resize(40);
  return bar_chart(title, unit, bars);
}

std::string charts(const std::vector<Record>& all) {
  std::string s =
      bars_of(all, "/figures/decode_j_per_tok", "Decode J/token: lower is better", "J/token", true);
  s += bars_of(all, "/figures/decode_tps", "Decode tok/s: higher is better", "tok/s", false);
  if (const auto lines = acceptance(all); !lines.empty())
    s += line_chart({"Tokens a step by draft depth", "draft depth (log2)", "tokens a step", true, true},
                    lines);
  if (const auto lines = by_place(all); !lines.empty())
    s += line_chart(
        {"Acceptance by place, given the places before", "place in the draft", "share accepted", false, true},
        lines);
  if (const auto lines = cumulative(all); !lines.empty())
    s += line_chart({"Perplexity so far, window by window", "window", "perplexity", false, false}, lines);
  std::map<std::string, Series> clouds;
  bool energy = false;
  for (const Record& r : all) energy |= decodes(r) && !std::isnan(figure(r, "/figures/decode_j_per_tok"));
  const char* y = energy ? "/figures/decode_j_per_tok" : "/figures/al";
  for (size_t i = 0; i < all.size(); ++i) {
    const double v = figure(all[i], y);
    if (!decodes(all[i]) || std::isnan(v)) continue;
    Series& c = clouds[word(all[i], "/model/name") + " " + word(all[i], "/settings/prompts")];
    c.points.push_back(
        {figure(all[i], "/figures/decode_tps"), v, label_of(all[i]), link_to(static_cast<int>(i))});
  }
  std::vector<Series> out;
  for (auto& [name, c] : clouds) c.name = name, c.colour = static_cast<int>(out.size()), out.push_back(c);
  if (!out.empty())
    s += pareto_chart(
        {energy ? "Pareto: speed and joules" : "Pareto: speed and tokens a step (no source of energy here)",
         "decode tok/s", energy ? "decode J/token" : "tokens a step", false, energy},
        out, !energy);
  return s;
}

std::string html_table(const Table& t) {
  std::string s = fmt::format("<h2>{}</h2>\n", html_escaped(t.title));
  if (!t.note.empty()) s += fmt::format("<p>{}</p>\n", html_escaped(t.note));
  s += fmt::format("<div class=\"scroll\"><table{}><thead><tr>", t.words ? " class=\"w\"" : "");
  for (size_t i = 0; i < t.head.size(); ++i) {
    const bool figures = std::all_of(t.rows.begin(), t.rows.end(), [&](const auto& row) {
      return i < row.size() && is_figure(row[i].text);
    });
    s += fmt::format("<th{}>{}</th>", figures ? " class=\"n\"" : "", html_escaped(t.head[i]));
  }
  s += "</tr></thead><tbody>\n";
  for (const auto& row : t.rows) {
    s += "<tr>";
    for (const Cell& c : row) {
      const std::string text = html_escaped(c.text);
      const std::string cls = c.text == "FAIL"                ? " class=\"bad\""
                              : !t.words && is_figure(c.text) ? " class=\"n\""
                                                              : "";
      s += fmt::format("<td{}>{}</td>", cls,
                       c.record >= 0 ? fmt::format("<a href=\"#r{}\">{}</a>", c.record, text) : text);
    }
    s += "</tr>\n";
  }
  return s + "</tbody></table></div>\n";
}

constexpr const char* kStyle = R"(
:root{--bg:#fff;--fg:#1b1f24;--dim:#59636e;--line:#d6dbe0;--card:#f5f7f9;--c0:#1f6feb;--c1:#cf5b1c;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#8a6d00}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e8ec;--dim:#9aa4af;--line:#343b43;--card:#1d2127;--c0:#6cb0ff;--c1:#ff9b5e;--c2:#5fcf80;--c3:#c4a2ff;--c4:#ff8fc6;--c5:#e6c34a}}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#bbb;--card:#fff;--c0:#1f6feb;--c1:#cf5b1c;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#8a6d00}details{display:none}figure,table{break-inside:avoid}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:0 auto;padding:24px}
h1{margin:0}h2{margin:36px 0 8px}p{color:var(--dim);margin:4px 0 10px}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0}.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 18px;color:var(--fg);text-decoration:none}
.card b{font-size:28px;display:block}.card small{color:var(--dim);display:block}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:12.5px;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:4px 7px;text-align:left;white-space:nowrap}td a{color:var(--c0)}.n{text-align:right}.w td{white-space:normal;vertical-align:top}.bad{color:var(--c1);font-weight:bold}
figure{margin:18px 0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px}svg{width:100%;height:auto;display:block}
svg text{fill:var(--fg);font:11px system-ui,sans-serif}svg .t{font-weight:600;font-size:13px}svg .a{fill:var(--dim)}svg .e{text-anchor:end}svg .m{text-anchor:middle}
svg .g{stroke:var(--line);stroke-width:1}svg .p{stroke:var(--fg);stroke-dasharray:4 3;fill:none}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}
.o0,.o1,.o2,.o3,.o4,.o5{fill:var(--card);stroke-width:2}.o0{stroke:var(--c0)}.o1{stroke:var(--c1)}.o2{stroke:var(--c2)}.o3{stroke:var(--c3)}.o4{stroke:var(--c4)}.o5{stroke:var(--c5)}.d{stroke-dasharray:5 3}
.l0,.l1,.l2,.l3,.l4,.l5{fill:none;stroke-width:2}.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}
pre{background:var(--card);border:1px solid var(--line);padding:8px;white-space:pre-wrap;overflow-wrap:anywhere;font-size:12px}details:target,details:has(:target){outline:2px solid var(--c1)}
)";

// Between tags a quotation mark needs no escape, and JSON is full of them.
std::string json_shown(const Record& r) {
  std::string out;
  for (const char c : r.dump(-1, ' ', false, Record::error_handler_t::replace))
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string machines(const std::vector<Record>& all) {
  std::set<std::string> seen;
  for (const Record& r : all) {
    std::string m = word(r, "/machine/cpu") + ", " + word(r, "/machine/cpus") + " processors";
    if (r.contains("/machine/gpus"_json_pointer))
      for (const Record& g : r["machine"]["gpus"]) m += ", " + g.value("name", "");
    seen.insert(m + "; carat " + word(r, "/carat/version") + " " + word(r, "/carat/commit"));
  }
  std::string s;
  for (const std::string& m : seen) s += (s.empty() ? "" : " | ") + m;
  return s;
}

}  // namespace

std::string unreadable(const Record& record) {
  try {
    const std::vector<Record> one{record};
    tables_of(one, Record::array());
    charts(one), headline(one), machines(one);
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

std::string report_html(const std::vector<Record>& all, const std::string& title, const Record& given) {
  std::string s = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n"
      "<p>{2} records. {3}</p>\n<div class=\"cards\">",
      html_escaped(title), kStyle, all.size(), html_escaped(machines(all)));
  for (const Card& c : headline(all))
    s += fmt::format("<a class=\"card\" href=\"#r{}\"><b>{}</b>{}<small>{}</small></a>", c.record,
                     html_escaped(c.big), html_escaped(c.what), html_escaped(c.about));
  s += "</div>\n";
  const std::vector<Table> tables = tables_of(all, given);
  for (const Table& t : tables) s += html_table(t);
  if (const std::string drawn = charts(all); !drawn.empty()) s += "<h2>Charts</h2>\n" + drawn;
  s += "<h2>Records</h2>\n";
  for (size_t i = 0; i < all.size(); ++i)
    s += fmt::format("<details id=\"r{}\"><summary>{} {} {}</summary><pre>{}</pre></details>\n", i, i,
                     html_escaped(word(all[i], "/kind")), html_escaped(label_of(all[i])), json_shown(all[i]));
  return s +
         "<script>addEventListener('hashchange',()=>{const "
         "d=document.querySelector(location.hash);if(d)d.open=true});</script>"
         "</body></html>\n";
}

std::string report_markdown(const std::vector<Record>& all, const std::string& title, const Record& given) {
  std::string s = fmt::format("# {}\n\n{} records. {}\n", title, all.size(), machines(all));
  for (const Card& c : headline(all)) s += fmt::format("\n- **{}** {} {}", c.big, c.what, c.about);
  s += "\n";
  for (const Table& t : tables_of(all, given)) {
    s += fmt::format("\n## {}\n\n{}{}|", t.title, t.note, t.note.empty() ? "" : "\n\n");
    for (const std::string& h : t.head) s += " " + h + " |";
    s += "\n|";
    for (size_t i = 0; i < t.head.size(); ++i) s += " --- |";
    for (const auto& row : t.rows) {
      s += "\n|";
      for (const Cell& c : row) {
        std::string text = c.text;
        std::replace(text.begin(), text.end(), '|', '/');
        std::replace(text.begin(), text.end(), '\n', ' ');
        s += " " + text + " |";
      }
    }
    s += "\n";
  }
  return s;
}

}  // namespace carat
