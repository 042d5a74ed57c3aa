// One line a request on stderr: when it is answered, and for streams again when they end.
#pragma once
#include <string>
#include <string_view>

namespace carat {

struct Answered {
  std::string id, method, path, client, address;
  int status = 0;
  double ms = 0;
  const char* stream = "";  // "begins", "ends", "cut"
};
void log_answer(const Answered& a, bool json);
std::string json_line(const Answered& a);  // with its end of line

// The client's own id if it is harmless in a log, or one of ours.
std::string request_id(std::string_view given);

}  // namespace carat
