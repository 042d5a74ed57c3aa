// carat bench-eyes: how long a tower looks at a picture.
#pragma once

namespace CLI {
class App;
}

namespace carat {
void add_bench_eyes(CLI::App& app);
}  // namespace carat
