#include "base/inner_command.h"

#include <cstring>

#include "base/error.h"

namespace carat {
namespace {

struct Entry {
  const char* name;
  int (*run)();
};
Entry entry = {};  // one is all that is needed; zero before any constructor runs

}  // namespace

InnerCommand::InnerCommand(const char* name, int (*run)()) {
  CARAT_CHECK(!entry.name, "{} and {}", entry.name, name);
  entry = {name, run};
}

bool ran_inner_command(int argc, char** argv, int& status) {
  if (argc < 2 || !entry.name || std::strcmp(argv[1], entry.name) != 0) return false;
  status = entry.run();
  return true;
}

}  // namespace carat
