#include "text/chat/qwen_values.h"

#include <algorithm>

namespace carat {
namespace {

constexpr size_t kMaxKey = 1024;

}  // namespace

// Whether the </parameter> at `at` closes: something must follow that may follow a parameter.
QwenScan::Is QwenScan::parameter_end(std::string_view text, size_t at, const QwenCallSoFar& call,
                                     bool last) const {
  const bool line = on_line(text, at);
  const std::string_view rest = text.substr(skip_blank(text, at + kParameterEnd.size()));
  if (rest.empty()) return last ? Is::end : Is::unclear;
  if (rest.starts_with(kCallEnd) || rest.starts_with(kCall)) return Is::end;
  if (rest.starts_with(kFunctionEnd)) {
    const std::string_view after = rest.substr(skip_blank(rest, kFunctionEnd.size()));
    if (after.empty()) return last ? Is::end : Is::unclear;
    if (after.starts_with(kCallEnd)) return Is::end;
    if (!line) return Is::text;
    if (begins(after, kCallEnd.substr(1)) && !last) return Is::unclear;
    return after.starts_with(kCallEnd.substr(1)) ? Is::text : Is::end;
  }
  if (rest.starts_with(kParameter)) {
    const size_t end = rest.substr(0, kMaxKey).find_first_of(">\n\xff");
    if (end == kNone && !last && rest.size() < kMaxKey) return Is::unclear;
    if (end == kNone || rest[end] != '>') return Is::text;
    const std::string_view key = rest.substr(kParameter.size(), end - kParameter.size());
    const bool given = std::find(call.given.begin(), call.given.end(), key) != call.given.end();
    return line || (call.tools.has(call.function, key) && !given) ? Is::end : Is::text;
  }
  return !last && (begins(rest, kFunctionEnd) || begins(rest, kParameter)) ? Is::unclear : Is::text;
}

// Whether the <parameter= at `at` begins another one, the end of this one forgotten.
QwenScan::Is QwenScan::next_parameter(std::string_view text, size_t at, const QwenCallSoFar& call,
                                      bool last) const {
  if (!on_line(text, at)) return Is::text;
  const std::string_view rest = text.substr(at + kParameter.size());
  const size_t end = rest.substr(0, kMaxKey).find_first_of(">\n\xff");
  if (end == kNone) return last || rest.size() >= kMaxKey ? Is::text : Is::unclear;
  const std::string_view key = rest.substr(0, end);
  const bool given = std::find(call.given.begin(), call.given.end(), key) != call.given.end();
  return rest[end] == '>' && !given && call.tools.has(call.function, key) ? Is::end : Is::text;
}

// Whether what stands behind a <tool_call> begins another call, the end of this one forgotten.
QwenScan::Is QwenScan::next_call(std::string_view text, const QwenCallSoFar& call, bool last) {
  if (!text.starts_with(kFunction)) return !last && begins(text, kFunction) ? Is::unclear : Is::text;
  const std::string_view rest = text.substr(kFunction.size());
  const size_t end = rest.substr(0, kMaxKey).find_first_of(">\n\xff");
  if (end == kNone) return last || rest.size() >= kMaxKey ? Is::text : Is::unclear;
  return rest[end] == '>' && call.tools.has(rest.substr(0, end)) ? Is::end : Is::text;
}

// The value ends before `at`, less the newline there.
QwenEnd QwenScan::ends(std::string_view text, size_t at, size_t next) const {
  const size_t end = at > 0 && text[at - 1] == '\n' ? at - 1 : at;
  return {true, end, next};
}

QwenEnd QwenScan::find(std::string_view text, const QwenCallSoFar& call, bool last) {
  size_t hold = kNone;
  for (size_t at = text.find_first_of("<\xff", from_); at != kNone;
       at = text.find_first_of("<\xff", at + 1)) {
    const std::string_view rest = text.substr(at);
    Is is = Is::text;
    size_t next = at;
    if (rest.starts_with(kParameterEnd)) {
      is = parameter_end(text, at, call, last);
      next = at + kParameterEnd.size();
    } else if (rest.starts_with(kParameter)) {
      is = next_parameter(text, at, call, last);
    } else if (rest.starts_with(kFunctionEnd)) {  // </parameter> was forgotten
      const std::string_view after = rest.substr(skip_blank(rest, kFunctionEnd.size()));
      is = after.starts_with(kCallEnd) || (after.empty() && last) ? Is::end
           : after.empty()                                        ? Is::unclear
                                                                  : Is::text;
    } else if (rest.starts_with(kCallEnd)) {
      if (candidate_ == kNone) candidate_ = at;
      at += kCallEnd.size() - 1;
      continue;
    } else if (rest.starts_with(kCall)) {
      if (candidate_ != kNone) return ends(text, rtrim(text, candidate_), candidate_);
      is = next_call(rest.substr(skip_blank(rest, kCall.size())), call, last);
    } else if (!last &&
               (begins(rest, kParameterEnd) || begins(rest, kParameter) || begins(rest, kFunctionEnd))) {
      is = Is::unclear;
    }
    if (is == Is::end) return ends(text, at, next);
    if (is == Is::unclear) {
      hold = at;
      break;
    }
  }
  if (last && candidate_ != kNone) return ends(text, rtrim(text, candidate_), candidate_);
  from_ = std::min(hold, text.size());
  size_t end = std::min({hold, candidate_, text.size()});
  if (!last) end = rtrim(text, end);  // it may be the tag's
  if (end > 0) fresh_ = false;
  from_ -= end;
  if (candidate_ != kNone) candidate_ -= end;
  return {last, end, end};
}

std::string QwenValue::more(std::string_view text) {
  held_ += text;
  if (!streams_ && (types_ == (DeclaredTools::string | DeclaredTools::null)) &&
      !begins(trimmed(held_), "null") && !begins(trimmed(held_), "None") && trimmed(held_) != "null" &&
      trimmed(held_) != "None")
    streams_ = true;
  if (!streams_) return {};
  const std::string quoted = json_string(std::exchange(held_, {}));
  const bool open = std::exchange(open_, true);
  return quoted.substr(open ? 1 : 0, quoted.size() - (open ? 2 : 1));
}

std::string QwenValue::end() {
  if (streams_) return open_ ? "\"" : "\"\"";
  const auto value = json_of_literal(held_);
  if (!value) return json_string(held_);
  const auto type = json_type(*value);
  if ((types_ & DeclaredTools::string) && (!type || !(types_ & *type))) return json_string(held_);
  return *value;
}

}  // namespace carat
