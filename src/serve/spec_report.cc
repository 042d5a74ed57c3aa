#include "serve/spec_report.h"

#include <fmt/format.h>

#include <cmath>

namespace carat {
namespace {

size_t places(const SpecStats& s) {
  size_t n = s.drafted_at.size();
  while (n > 0 && s.drafted_at[n - 1] == 0) --n;
  return n;
}

double share(uint64_t a, uint64_t b) { return b ? static_cast<double>(a) / static_cast<double>(b) : 0; }
double rounded(double v) { return std::round(v * 1e4) / 1e4; }

}  // namespace

std::vector<double> accepted_by_place(const SpecStats& s) {
  std::vector<double> all;
  for (size_t i = 0; i < places(s); ++i) all.push_back(rounded(share(s.accepted_at[i], s.rounds)));
  return all;
}

std::vector<double> accepted_given_previous(const SpecStats& s) {
  std::vector<double> all;
  for (size_t i = 0; i < places(s); ++i) all.push_back(rounded(share(s.accepted_at[i], s.tried_at[i])));
  return all;
}

nlohmann::json spec_json(const SpecStats& s, bool synthetic) {
  nlohmann::json j = {{"drafts", s.rounds},
                      {"plain_steps", s.plain},
                      {"accepted_length", rounded(s.accepted_length())},
                      {"mean_acceptance_length", rounded(1 + share(s.accepted, s.rounds))},
                      {"acceptance_rate", rounded(share(s.accepted, s.drafted))},
                      {"accepted_per_pos", accepted_by_place(s)},
                      {"accepted_per_pos_given_previous", accepted_given_previous(s)},
                      {"draft_ms", 1e3 * s.draft_seconds},
                      {"verify_ms", 1e3 * s.verify_seconds},
                      {"sample_ms", 1e3 * s.sample_seconds}};
  for (const SpecShare& d : s.shares)
    j["drafters"][d.drafter] = {{"drafts", d.rounds}, {"drafted", d.drafted}, {"accepted", d.accepted}};
  if (synthetic) j["synthetic"] = true;
  return j;
}

void write_spec_metrics(std::string& out, const SpecStats& s, bool synthetic, const std::string& labels) {
  const auto head = [&](std::string_view name, std::string_view type, std::string_view help) {
    out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  };
  const auto value = [&](std::string_view name, std::string_view type, std::string_view help, auto v) {
    head(name, type, help);
    out += fmt::format("{}{{{}}} {}\n", name, labels, v);
  };
  value("vllm:spec_decode_num_drafts_total", "counter", "Drafts verified.", s.rounds);
  value("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens in them.", s.drafted);
  value("vllm:spec_decode_num_accepted_tokens_total", "counter", "Tokens of them that were accepted.",
        s.accepted);
  head("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
       "Accepted tokens by place in the draft.");
  for (size_t i = 0; i < places(s); ++i)
    out += fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos_total{{{},position=\"{}\"}} {}\n",
                       labels, i, s.accepted_at[i]);
  head("carat:spec_num_tried_tokens_per_pos_total", "counter",
       "Drafts whose tokens before this place were accepted.");
  for (size_t i = 0; i < places(s); ++i)
    out += fmt::format("carat:spec_num_tried_tokens_per_pos_total{{{},position=\"{}\"}} {}\n", labels, i,
                       s.tried_at[i]);
  const auto by_drafter = [&](std::string_view name, std::string_view help, uint64_t SpecShare::*member) {
    head(name, "counter", help);
    for (const SpecShare& d : s.shares)
      out += fmt::format("{}{{{},drafter=\"{}\"}} {}\n", name, labels, d.drafter, d.*member);
  };
  by_drafter("carat:spec_drafts_total", "Drafts verified, by drafter.", &SpecShare::rounds);
  by_drafter("carat:spec_draft_tokens_total", "Tokens in them.", &SpecShare::drafted);
  by_drafter("carat:spec_accepted_tokens_total", "Tokens of them that were accepted.", &SpecShare::accepted);
  value("carat:spec_plain_steps_total", "counter", "Tokens generated without a draft.", s.plain);
  value("carat:spec_draft_seconds_total", "counter", "Time spent drafting.", s.draft_seconds);
  value("carat:spec_verify_seconds_total", "counter", "Time of the model's steps while decoding.",
        s.verify_seconds);
  value("carat:spec_sample_seconds_total", "counter", "Time spent sampling.", s.sample_seconds);
  value("carat:spec_synthetic", "gauge", "1: acceptance is thrown by dice, the text means nothing.",
        synthetic ? 1 : 0);
}

}  // namespace carat
