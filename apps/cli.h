// The command line: `carat COMMAND [flags]`. Each command is one file with one add_*() that registers it.
#pragma once

namespace CLI {
class App;
}

namespace carat {

void add_run(CLI::App& app);
void add_serve(CLI::App& app);
void add_inspect(CLI::App& app);
void add_eval(CLI::App& app);
void add_eval_render(CLI::App& eval);
void add_eval_acceptance(CLI::App& eval);
void add_convert(CLI::App& app);
void add_forge(CLI::App& app);
void add_bench(CLI::App& app);
void add_bench_ops(CLI::App& app);

// Parses and runs. 0 done, 1 the command failed, 2 wrong usage.
int run_cli(int argc, char** argv);

}  // namespace carat
