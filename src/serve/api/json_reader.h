// JSON in time linear to its length: nlohmann's ordered_json looks through all keys of an object for each new
// one.
#pragma once
#include <string_view>

#include "text/chat/chat.h"

namespace carat {

// Throws Json::exception if it is none. Of equal keys the last value counts, at the first one's place.
Json read_json(std::string_view text);

}  // namespace carat
