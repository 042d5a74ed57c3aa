// What a decoding process gives up before it reads a file that somebody sent.
#pragma once
#include <cstdint>
#include <string>

namespace carat {

// Closes every file but the first three and lowers the limits; from the last line on the process may read,
// write, ask for memory and end; files cannot be opened, and the kernel kills it for anything else. Returns
// what could not be had ("" if all), e.g. where seccomp is forbidden.
std::string enter_sandbox(uint64_t memory_bytes);

}  // namespace carat
