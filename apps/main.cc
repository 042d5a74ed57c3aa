// carat <command>
#include <csignal>

#include "apps/cli.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, not the end of the program
  std::signal(SIGPIPE, SIG_IGN);  // so is a reader that went away
  return carat::run_cli(argc, argv);
}
