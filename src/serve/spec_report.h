// What speculation did, as JSON and as Prometheus text.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine.h"

namespace carat {

// Shares by place on the path: of all verified drafts (as vLLM counts: never rising), and of those drafts in
// which the places before were right (what the drafter can do there).
std::vector<double> accepted_by_place(const SpecStats& stats);
std::vector<double> accepted_given_previous(const SpecStats& stats);

// accepted_length, both lists, the split of time.
nlohmann::json spec_json(const SpecStats& stats, bool synthetic);

// Counters with vLLM's names.
void write_spec_metrics(std::string& out, const SpecStats& stats, bool synthetic, const std::string& labels);

}  // namespace carat
