// A program: the operations of one step, in order, as plain data. Model code writes it once per shape bucket;
// the hot path only replays it. A list, not a graph: no rewriting, no scheduling, no shape inference.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/ops.h"

namespace carat {

struct OpRecord {
  Op op;
  RowSet rows;
  int16_t layer;  // for profiles and per-layer diffs; -1 outside layers
  alignas(16) std::byte args[512];
  template <class A>
  const A& as() const {
    return *reinterpret_cast<const A*>(args);
  }
  template <class A>
  A& as() {
    return *reinterpret_cast<A*>(args);
  }
};

class Program {
 public:
  template <class A>
  void push(const A& a) {
    static_assert(std::is_trivially_copyable_v<A> && sizeof(A) <= sizeof(OpRecord::args));
    OpRecord r{OpOf<A>::value, rows_, layer_, {}};
    std::memcpy(r.args, &a, sizeof a);
    ops_.push_back(r);
  }
  void push(const OpRecord& r) { ops_.push_back(r); }
  void at_layer(int layer) { layer_ = static_cast<int16_t>(layer); }
  void at_rows(RowSet rows) { rows_ = rows; }
  RowSet rows() const { return rows_; }
  std::span<const OpRecord> ops() const { return ops_; }

 private:
  std::vector<OpRecord> ops_;
  int16_t layer_ = -1;
  RowSet rows_ = RowSet::all;
};

// One line per operation: layer, name, shapes and types. For `carat inspect --program` and for diffs.
std::string dump(const Program& program);

}  // namespace carat
