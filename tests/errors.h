// What a call refuses, for tests.
#pragma once
#include <string>

#include "base/error.h"

namespace carat::test {

// The text of the Error that f() throws; empty: none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace carat::test
