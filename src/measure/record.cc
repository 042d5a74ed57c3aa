#include "measure/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "carat_commit.h"

namespace carat {
namespace {

// Column, and where the record has it.
constexpr std::pair<const char*, const char*> kColumns[] = {{"config", "/settings/config"},
                                                            {"arch", "/model/arch"},
                                                            {"dist", "/settings/prompts"},
                                                            {"draft", "/settings/draft"},
                                                            {"kv_k", "/settings/kv_k"},
                                                            {"kv_v", "/settings/kv_v"},
                                                            {"ctx", "/settings/ctx"},
                                                            {"dm", "/settings/dm"},
                                                            {"wall_s", "/figures/wall_s"},
                                                            {"prefill_ms", "/figures/prefill_ms"},
                                                            {"prefill_tps", "/figures/prefill_tps"},
                                                            {"decode_ms", "/figures/decode_ms"},
                                                            {"decode_tps", "/figures/decode_tps"},
                                                            {"decode_tps_p10", "/figures/tok_s/p10"},
                                                            {"al", "/figures/al"},
                                                            {"accept_rate", "/figures/accept_rate"},
                                                            {"first_tok_ms", "/figures/first_tok_ms"},
                                                            {"vram_peak_gb", "/figures/vram_peak_gb"},
                                                            {"avg_power_w", "/figures/avg_power_w"},
                                                            {"total_energy_j", "/figures/total_energy_j"},
                                                            {"prefill_energy_j", "/figures/prefill_energy_j"},
                                                            {"decode_energy_j", "/figures/decode_energy_j"},
                                                            {"decode_j_per_tok", "/figures/decode_j_per_tok"},
                                                            {"ppl", "/figures/ppl"},
                                                            {"kld", "/figures/kld"},
                                                            {"model", "/model/name"},
                                                            {"busy", "/busy"}};

std::string cell(const Record& v) {
  if (v.is_null()) return {};
  if (v.is_number_float()) return fmt::format("{:.6g}", v.get<double>());
  if (v.is_array()) return v.empty() ? "no" : "yes";
  std::string text = v.is_string() ? v.get<std::string>() : v.dump();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string build_commit() { return CARAT_COMMIT; }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  ::gmtime_r(&now, &t);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t);
  return text;
}

Record new_record(const std::string& kind) {
  return {{"schema", kRecordSchema},
          {"version", kRecordVersion},
          {"kind", kind},
          {"time", utc_now()},
          {"carat", {{"version", CARAT_VERSION}, {"commit", build_commit()}}}};
}

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, v.size() - 1);
  return v[low] + (at - static_cast<double>(low)) * (v[high] - v[low]);
}

Record spread(std::vector<double> v) {
  if (v.empty()) return nullptr;
  std::sort(v.begin(), v.end());
  return {{"median", quantile(v, 0.5)},
          {"p10", quantile(v, 0.1)},
          {"min", v.front()},
          {"max", v.back()},
          {"n", v.size()}};
}

void put_energy(Record& figures, const Energy& whole) {
  if (const auto j = whole.joules()) figures["total_energy_j"] = *j;
  if (const auto w = whole.watts()) figures["avg_power_w"] = *w;
}

void put_energy(Record& figures, const std::optional<Energy>& prefill, const std::optional<Energy>& decode,
                double tokens) {
  Energy all;
  for (const auto& part : {prefill, decode})
    if (part) all += *part;
  put_energy(figures, all);
  if (prefill && prefill->joules()) figures["prefill_energy_j"] = *prefill->joules();
  if (!decode || !decode->joules()) return;
  figures["decode_energy_j"] = *decode->joules();
  if (tokens > 0) figures["decode_j_per_tok"] = *decode->joules() / tokens;
}

std::string csv_header() {
  std::string line;
  for (const auto& [name, where] : kColumns) line += fmt::format("{}{}", line.empty() ? "" : ",", name);
  return line;
}

std::string csv_line(const Record& record) {
  std::string line;
  for (const auto& [name, where] : kColumns) {
    const Record::json_pointer at(where);
    if (&name != &kColumns[0].first) line += ',';
    line += cell(record.contains(at) ? record.at(at) : Record());
  }
  return line;
}

namespace {

bool is_record(const Record& r) {
  return r.is_object() && r.contains("schema") && r["schema"].is_string() &&
         r["schema"].get<std::string>() == kRecordSchema;
}

// Parts that every reader asks for are there from then on. Empty if all is well.
std::string completed(Record& r) {
  if (!r.contains("kind") || !r["kind"].is_string()) return "it has no kind";
  for (const char* part : {"machine", "model", "settings", "figures"}) {
    if (!r.contains(part)) r[part] = Record::object();
    if (!r[part].is_object()) return fmt::format("its {} is no object", part);
  }
  return {};
}

}  // namespace

std::vector<Record> read_records(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Record> all;
  size_t noise = 0;
  const auto add = [&](const Record& j) {
    for (const Record& given : j.is_array() ? j : Record::array({j})) {
      if (!is_record(given)) continue;
      Record r = given;
      if (const Record v = r.value("version", Record()); v.is_number() && v > kRecordVersion)
        throw Error(fmt::format("'{}' has records of version {}", path, v.dump()),
                    "a newer carat wrote them");
      if (const std::string fault = completed(r); !fault.empty())
        log_warn("'{}': a record is damaged, {}: left out", path, fault);
      else
        all.push_back(std::move(r));
    }
  };
  if (const Record whole = Record::parse(text, nullptr, false); !whole.is_discarded()) {
    add(whole);
  } else {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const Record j = Record::parse(text.substr(at, end - at), nullptr, false);
      if (!j.is_discarded())
        add(j);
      else
        noise += text.find_first_not_of(" \t\r", at) < end;
      at = end + 1;
    }
  }
  if (noise > 0 && all.empty())
    log_warn("'{}' is no JSON, cut off perhaps: left out", path);
  else if (noise > 0)
    log_warn("'{}': {} lines are no JSON: left out", path, noise);
  return all;
}

}  // namespace carat
