// carat <command>
#include "apps/cli.h"

int main(int argc, char** argv) { return carat::run_cli(argc, argv); }
