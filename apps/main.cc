// carat <command>
#include <csignal>

#include "apps/cli.h"
#include "base/inner_command.h"

int main(int argc, char** argv) {
  int status = 0;
  if (carat::ran_inner_command(argc, argv, status)) return status;
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error of the write, not the end of the program
  std::signal(SIGPIPE, SIG_IGN);  // so is a reader that went away
  return carat::run_cli(argc, argv);
}
