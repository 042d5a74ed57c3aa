// Arguments of calls in answers that are JSON: parsed and written again, numbers would lose digits.
#pragma once
#include <string>
#include <vector>

#include "serve/api/job.h"

namespace carat {

// Stands for a call's arguments in an answer until that is text.
std::string arguments_mark(const ToolCall& call);
// The text of an answer with the arguments of these calls as the model wrote them, {} where that is no
// object. one_line: those of several lines are written again.
std::string with_arguments(const std::vector<ToolCall>& calls, std::string text, bool one_line);

}  // namespace carat
