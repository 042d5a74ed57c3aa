// The Jinja that chat templates use; expected results are the real Jinja2's (tests/data/templates).
#pragma once
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace carat {

// Bounds that keep a hostile template from hanging or exhausting the process; exceeding one is an Error.
struct JinjaLimits {
  size_t steps = 20'000'000, output_bytes = size_t{64} << 20;
  int depth = 200;
};

class JinjaTemplate {
 public:
  // Error with line number, naming the construct, if the text cannot be parsed or uses something unknown.
  explicit JinjaTemplate(std::string_view text);
  ~JinjaTemplate();
  JinjaTemplate(JinjaTemplate&&) noexcept;
  // variables: an object. raise_exception() in the template becomes an Error with its message.
  // now: what strftime_now() shows; null is the clock, in local time.
  std::string render(const nlohmann::ordered_json& variables, const JinjaLimits& limits = {},
                     const std::tm* now = nullptr) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
