#include "serve/api/logprobs.h"

#include <cmath>

namespace carat {

double finite_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

Json token_json(const std::string& text, float logprob) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", finite_logprob(logprob)}, {"bytes", std::move(bytes)}};
}

Json token_reports(const Job& job, const Choice& c, size_t first) {
  Json out = Json::array();
  for (size_t i = first; i < c.reports.size(); ++i) {
    Json token = token_json(c.reports[i].text, c.reports[i].logprobs.chosen);
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& t : c.reports[i].logprobs.top)
      token["top_logprobs"].push_back(token_json(job.model().tokenizer.piece(t.token), t.logprob));
    out.push_back(std::move(token));
  }
  return out;
}

}  // namespace carat
