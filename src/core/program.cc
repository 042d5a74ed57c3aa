#include "core/program.h"

namespace carat {
std::string dump(const Program&) { return {}; }
}  // namespace carat
