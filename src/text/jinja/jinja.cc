#include "text/jinja/jinja.h"

#include "text/jinja/context.h"
#include "text/jinja/lexer.h"

namespace carat {

struct JinjaTemplate::Impl {
  jinja::Body body;
};

JinjaTemplate::JinjaTemplate(std::string_view text) : impl_(std::make_unique<Impl>()) {
  impl_->body = jinja::parse(text);
}
JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;

std::string JinjaTemplate::render(const nlohmann::ordered_json& variables, const JinjaLimits& limits,
                                  const std::tm* now) const {
  jinja::Context context(variables, limits, now);
  try {
    return context.render(impl_->body);
  } catch (const jinja::Fail& fail) {
    jinja::fail_at(context.line, fail.what);
  }
}

}  // namespace carat
