// The record of a measurement: one JSON object for every command that measures (docs/records.md), and its
// line of CSV.
#pragma once
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "measure/energy.h"

namespace carat {

using Record = nlohmann::ordered_json;
inline constexpr const char* kRecordSchema = "carat.record";
inline constexpr int kRecordVersion = 1;

// schema, version, kind, time and the program's version and commit; the rest is the caller's.
Record new_record(const std::string& kind);
std::string utc_now();       // 2026-11-25T17:20:40Z
std::string build_commit();  // "761e97b", with "+changes" where files differ from it

// Of repetitions: median, p10 (a tenth is slower), min, max, n. values need no order.
Record spread(std::vector<double> values);
double quantile(std::vector<double> values, double q);

// Joules and watts under the names of the CSV; of what no source tells, nothing.
void put_energy(Record& figures, const std::optional<Energy>& prefill, const std::optional<Energy>& decode,
                double tokens);
void put_energy(Record& figures, const Energy& whole);

// The columns of a record, and a line of them. What a record does not have is empty.
std::string csv_header();
std::string csv_line(const Record& record);

// Every record in a file: an object, an array or one a line. What is damaged is left out with a warning.
std::vector<Record> read_records(const std::string& path);

}  // namespace carat
