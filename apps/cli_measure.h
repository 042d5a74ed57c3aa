// The commands that judge, choose and show: what stands on records.
#pragma once

namespace CLI {
class App;
}

namespace carat {

void add_gate(CLI::App& app);
void add_load(CLI::App& app);
void add_plan(CLI::App& app);
void add_promote(CLI::App& app);
void add_report(CLI::App& app);
void add_tune(CLI::App& app);

}  // namespace carat
