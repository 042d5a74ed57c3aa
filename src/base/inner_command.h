// Programs that start themselves again to do one thing in a process of its own (media/decoder.h) say so by a
// first argument. Whoever links the code that does it has it registered; main() asks before all else.
#pragma once

namespace carat {

// At start-up, before main(): `run` is what a program whose first argument is `name` does.
struct InnerCommand {
  InnerCommand(const char* name, int (*run)());
};

// true if the first argument is one of those: it was done, status is the program's.
bool ran_inner_command(int argc, char** argv, int& status);

}  // namespace carat
