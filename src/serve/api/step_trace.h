// Where an answer's tokens came from, step by step, for those who ask with stream_options.include_steps.
#pragma once
#include <functional>
#include <string>

#include "engine/engine.h"
#include "serve/api/json.h"

namespace carat {

struct StepTrace {
  SpecStats before;            // what speculation had done until the last step
  Json fresh = Json::array();  // steps that the stream has not sent yet

  // {"tokens": [text...]} of a plain step; of a verified draft also its drafter, and how many of its tokens
  // were drafted and accepted. The accepted ones come first, then the one that the model chose itself;
  // rejected has those that stood in the draft instead of it.
  void add(const Event& e, const std::function<std::string(Token)>& text_of);
};

}  // namespace carat
