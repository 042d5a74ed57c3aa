// Text of clients and files on its way to a terminal.
#pragma once
#include <string>
#include <string_view>

namespace carat {

// What it says must not steer a terminal: control characters (but line ends, if they may stay) and bytes that
// are no UTF-8 as \xNN.
std::string printable(std::string_view text, bool lines = false);

}  // namespace carat
