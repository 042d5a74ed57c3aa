// The one main() of every test program.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "base/inner_command.h"

int main(int argc, char** argv) {
  int status = 0;
  if (carat::ran_inner_command(argc, argv, status)) return status;
  return doctest::Context(argc, argv).run();
}
