// A line from the terminal, with editing and a history in memory (libedit).
#pragma once
#include <memory>
#include <string>

namespace carat {

class LineReader {
 public:
  LineReader();
  ~LineReader();
  // False at the end of input (Ctrl-D). A line that ends in '\' goes on in the next.
  bool read(std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carat
