#include "apps/op_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "apps/traffic.h"

namespace carat {
namespace {

std::string weight_name(const Tensor& w) {
  std::string s = fmt::format("{} {}x{}", info(w.type).name, w.rows, w.cols);
  if (w.slices > 1) s += fmt::format(" of {}", w.slices);
  return s;
}

std::string op_name(const OpRecord& op) {
  std::string s;
  switch (op.op) {
#define X(name) \
  case Op::name: s = #name; break;
    CARAT_OPS(X)
#undef X
  }
  if (op.op == Op::Matmul) s += " " + weight_name(op.as<MatmulArgs>().w);
  if (op.op == Op::GateUp) s += " " + weight_name(op.as<GateUpArgs>().gate);
  if (op.op == Op::Experts) s += " " + weight_name(op.as<ExpertsArgs>().gate);
  if (op.op == Op::Attention) {
    const KvSpec& kv = op.as<AttentionArgs>().kv.spec;
    s += fmt::format(" {}x{}{}", kv.heads, kv.dim, kv.window ? fmt::format(" window {}", kv.window) : "");
  }
  return s + (op.rows == RowSet::out ? " (out)" : "");
}

}  // namespace

std::vector<OpGroup> group_ops(const Program& program, std::span<const double> seconds, int32_t rows,
                               int32_t wanted, int32_t depth) {
  std::map<std::string, OpGroup> by_name;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const OpRecord& op = program.ops()[i];
    const int32_t n = op.rows == RowSet::out ? wanted : rows;
    OpGroup& g = by_name[op_name(op)];
    ++g.count;
    g.seconds += i < seconds.size() ? seconds[i] : 0;
    g.bytes += op_read_bytes(op, n, depth);
    g.operations += op_operations(op, n, depth);
  }
  std::vector<OpGroup> groups;
  for (auto& [name, g] : by_name) {
    g.name = name;
    groups.push_back(std::move(g));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const OpGroup& a, const OpGroup& b) { return a.seconds > b.seconds; });
  return groups;
}

std::string op_table(std::span<const OpGroup> groups, double read_ceiling, double dot_ceiling) {
  OpGroup all{"all", 0, 0, 0, 0};
  for (const OpGroup& g : groups) {
    all.count += g.count;
    all.seconds += g.seconds;
    all.bytes += g.bytes;
    all.operations += g.operations;
  }
  std::string out =
      "| operation                               |   n |     ms |  step % |   GB/s | of read % |    GOPS | "
      "of dots % |\n"
      "| --------------------------------------- | --: | -----: | ------: | -----: | --------: | ------: | "
      "--------: |\n";
  const auto line = [&](const OpGroup& g) {
    const double s = std::max(g.seconds, 1e-9);
    fmt::format_to(std::back_inserter(out),
                   "| {:<39} | {:>3} | {:>6.2f} | {:>7.1f} | {:>6.1f} | {:>9.1f} | {:>7.1f} | {:>9.1f} |\n",
                   g.name, g.count, g.seconds * 1e3, 100 * g.seconds / std::max(all.seconds, 1e-9),
                   g.bytes / s * 1e-9, 100 * g.bytes / s / read_ceiling, g.operations / s * 1e-9,
                   100 * g.operations / s / dot_ceiling);
  };
  for (const OpGroup& g : groups) line(g);
  line(all);
  return out;
}

}  // namespace carat
