#include "model/pieces.h"

namespace carat {
namespace {

constexpr double kMost = 1e12;  // multiplications and additions of a piece: some 3 ms on an H100

// Of the program's bucket, whose rows all see each other, as CUDA devices do them: float weights take two
// products of 16 bits, attention over floats three (docs/numerics.md).
double work_of(const OpRecord& op) {
  const auto product = [](const Tensor& x, const Tensor& w) { return 4.0 * x.rows * x.cols * w.rows; };
  switch (op.op) {
    case Op::Matmul: return product(op.as<MatmulArgs>().x, op.as<MatmulArgs>().w);
    case Op::GateUp: return 2 * product(op.as<GateUpArgs>().x, op.as<GateUpArgs>().gate);
    case Op::Attention: {
      const Tensor& q = op.as<AttentionArgs>().q;
      return 12.0 * q.rows * q.rows * q.cols;
    }
    default: return 0;
  }
}

}  // namespace

std::vector<std::unique_ptr<Executable>> compile_pieces(Backend& backend, const Program& program,
                                                        const StepState* state) {
  std::vector<std::unique_ptr<Executable>> out;
  Program piece;
  double work = 0;
  const auto close = [&] {
    if (!piece.ops().empty()) out.push_back(backend.compile(piece, state));
    piece = {}, work = 0;
  };
  for (const OpRecord& op : program.ops()) {
    if (!backend.host_memory() && work + work_of(op) > kMost) close();
    piece.push(op);
    work += work_of(op);
  }
  close();
  return out;
}

}  // namespace carat
