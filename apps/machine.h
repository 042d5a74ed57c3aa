// Machines that plans know by name, so that nothing of theirs need be at hand.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace carat {

struct Machine {
  std::string_view name, title;
  int64_t memory;  // of its GPU; unified: of CPU and GPU together
  bool unified;

  // A sixteenth is left to what else is in it.
  int64_t room() const { return memory / 16 * 15; }
};
inline constexpr Machine kMachines[] = {
    {"gb10", "GB10 (DGX Spark)", int64_t{128'000'000'000}, true},
    {"rtx3090", "RTX 3090", int64_t{24} << 30, false},
    {"rtx4090", "RTX 4090", int64_t{24} << 30, false},
    {"rtx5090", "RTX 5090", int64_t{32} << 30, false},
};
inline std::string machine_names() {
  std::string out;
  for (const Machine& m : kMachines) out += (out.empty() ? "" : ", ") + std::string(m.name);
  return out;
}
inline const Machine& find_machine(const std::string& name) {
  for (const Machine& m : kMachines)
    if (m.name == name) return m;
  throw Error(fmt::format("no machine is called '{}'", name), "known: " + machine_names());
}

}  // namespace carat
