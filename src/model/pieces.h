// A tower's program in pieces, for a device on which others wait meanwhile.
#pragma once
#include <memory>
#include <vector>

#include "core/backend.h"

namespace carat {

// Executables to be run one behind the other. Where the backend is a device of its own, between whose
// programs a model's steps come (cuda/guest.h), as many operations are one as take a few milliseconds on a
// large one; else all are.
std::vector<std::unique_ptr<Executable>> compile_pieces(Backend& backend, const Program& program,
                                                        const StepState* state);

}  // namespace carat
