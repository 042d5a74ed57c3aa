#include "serve/api/logprobs.h"

#include <cmath>

namespace carat {

double finite_logprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

Json token_json(const std::string& text, float logprob) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", finite_logprob(logprob)}, {"bytes", std::move(bytes)}};
}

std::string id_text(Token token) { return fmt::format("token_id:{}", token); }

Json token_reports(const Job& job, const Choice& c, size_t first) {
  Json out = Json::array();
  const auto told = [&](Token t, const std::string& text, float logprob) {
    Json j = token_json(text, logprob);
    if (job.options().wishes.tokens_as_ids) j["token"] = id_text(t);
    return j;
  };
  for (size_t i = first; i < c.reports.size(); ++i) {
    Json token = told(c.tokens.at(i), c.reports[i].text, c.reports[i].logprobs.chosen);
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& t : c.reports[i].logprobs.top)
      token["top_logprobs"].push_back(told(t.token, job.model().tokenizer.piece(t.token), t.logprob));
    out.push_back(std::move(token));
  }
  return out;
}

}  // namespace carat
