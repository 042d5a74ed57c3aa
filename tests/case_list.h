// What the files of cases (op_cases.h) have in common.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/op_cases.h"

namespace carat::test {

inline constexpr double kUlp = 0x1p-24;  // half a unit in the last place of 1

inline double dot(const float* x, const float* w, int32_t n) {
  double s = 0;
  for (int32_t i = 0; i < n; ++i) s += double{x[i]} * w[i];
  return s;
}

// The step's rows as one sequence.
inline void plain_step(CaseRun& c, int32_t rows) { c.step({{0, rows}}); }

class List {
 public:
  template <class... T>
  void add(std::function<void(CaseRun&)> build, fmt::format_string<T...> name, T&&... v) {
    cases.push_back({fmt::format(name, std::forward<T>(v)...), std::move(build)});
  }
  std::vector<OpCase> cases;
};

}  // namespace carat::test
