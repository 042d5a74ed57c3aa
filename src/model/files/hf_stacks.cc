#include "model/files/hf_stacks.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "core/codec.h"

namespace carat {
namespace {

constexpr const char* kHint = "config.json and the tensors are of different checkpoints";

// Experts of several types: floats that hold all of them.
void to_floats(Repacked& m) {
  std::vector<std::byte> from = std::move(m.bytes);
  const int64_t pitch = row_bytes(m.type, m.cols);
  m.bytes.resize(static_cast<size_t>(m.rows * m.cols) * 4);
  for (int64_t r = 0; r < m.rows; ++r)
    decode_row(m.type, from.data() + r * pitch, reinterpret_cast<float*>(m.bytes.data()) + r * m.cols,
               m.cols);
  m.type = DType::f32;
}

std::pair<std::string, int64_t> split(const std::string& name) {
  const size_t at = name.find('#');
  if (at == name.npos) return {name, -1};
  return {name.substr(0, at), std::stoll(name.substr(at + 1))};
}

}  // namespace

void HfStacks::add(const std::string& name, Repacked matrix) {
  ++counts_[fmt::format("{} as {}", matrix.scheme, info(matrix.type).name)];
  const auto [stack, expert] = split(name);
  if (!stacks_[stack].emplace(expert, std::move(matrix)).second)
    throw Error(fmt::format("the checkpoint holds '{}' twice", name), kHint);
}

std::string HfStacks::summary() const {
  std::string out;
  for (const auto& [what, n] : counts_) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", n, what);
  return out;
}

// Gate above up for every expert, as files with stacks have them; not where the two have factors of their
// own.
void HfStacks::fuse(const std::string& gate, const std::string& up, const std::string& both) {
  const auto g = stacks_.find(gate), u = stacks_.find(up);
  if (g == stacks_.end() || u == stacks_.end() || g->second.size() != u->second.size()) return;
  for (const auto& [e, m] : g->second) {
    const auto other = u->second.find(e);
    if (other == u->second.end() || m.has_factor || other->second.has_factor ||
        m.type != other->second.type || m.cols != other->second.cols)
      return;
  }
  for (auto& [e, m] : g->second) {
    const Repacked& other = u->second.at(e);
    m.bytes.insert(m.bytes.end(), other.bytes.begin(), other.bytes.end());
    m.rows += other.rows;
  }
  stacks_[both] = std::move(g->second);
  stacks_.erase(gate);
  stacks_.erase(up);
}

void HfStacks::finish(std::vector<TensorInfo>& list, const std::function<std::byte*(size_t)>& own,
                      bool fused) {
  std::erase_if(list, [&](const TensorInfo& t) {
    const auto [stack, expert] = split(t.name);
    if (expert < 0) return false;
    if (t.shape.size() != 2) throw Error(fmt::format("an expert of '{}' is not a matrix", stack), kHint);
    Repacked m{t.type, t.shape[0], t.shape[1], 1, false, 0, {}, {t.data, t.data + t.bytes}};
    if (!stacks_[stack].emplace(expert, std::move(m)).second)
      throw Error(fmt::format("the checkpoint holds an expert of '{}' twice", stack), kHint);
    return true;
  });
  constexpr std::string_view kGate = "ffn_gate_exps.weight";
  std::vector<std::string> blocks;
  for (const auto& [name, experts] : stacks_)
    if (fused && name.ends_with(kGate)) blocks.push_back(name.substr(0, name.size() - kGate.size()));
  for (const std::string& b : blocks)
    fuse(b + std::string(kGate), b + "ffn_up_exps.weight", b + "ffn_gate_up_exps.weight");
  for (auto& [name, experts] : stacks_) {
    const auto n = static_cast<int64_t>(experts.size());
    const Repacked& first = experts.begin()->second;
    const bool single = experts.begin()->first == -1;
    if (single ? n != 1 : experts.rbegin()->first != n - 1)
      throw Error(fmt::format("'{}' lacks some of its experts", name), kHint);
    bool same = true;
    for (const auto& [e, m] : experts) {
      if (m.rows != first.rows || m.cols != first.cols)
        throw Error(fmt::format("the experts of '{}' are of different shapes", name), kHint);
      same = same && m.type == first.type;
    }
    if (!same)
      for (auto& [e, m] : experts) to_floats(m);
    TensorInfo t;
    t.name = name;
    t.type = first.type;
    t.shape = {first.rows, first.cols};
    if (!single) t.shape.insert(t.shape.begin(), n);
    t.bytes = first.bytes.size() * experts.size();
    std::byte* to = own(t.bytes);
    t.data = to;
    std::vector<float> factors;
    bool any = false;
    for (auto& [e, m] : experts) {
      std::memcpy(to, m.bytes.data(), m.bytes.size());
      to += m.bytes.size();
      factors.push_back(m.factor);
      any = any || m.has_factor;
      std::vector<std::byte>().swap(m.bytes);
    }
    list.push_back(std::move(t));
    if (!any) continue;
    const std::string scale = name.substr(0, name.rfind('.')) + ".scale";
    // A factor per expert may be there already, and means the same.
    const auto there =
        std::find_if(list.begin(), list.end(), [&](const TensorInfo& x) { return x.name == scale; });
    TensorInfo s;
    s.name = scale;
    s.shape = {n};
    s.bytes = static_cast<size_t>(n) * 4;
    if (there != list.end()) {
      if (there->type != DType::f32 || there->elements() != n)
        throw Error(fmt::format("'{}' is not a factor per expert", scale), kHint);
      for (size_t i = 0; i < factors.size(); ++i) {
        float f = 0;
        std::memcpy(&f, there->data + 4 * i, 4);
        factors[i] *= f;
      }
      list.erase(there);
    }
    std::byte* p = own(s.bytes);
    std::memcpy(p, factors.data(), s.bytes);
    s.data = p;
    list.push_back(std::move(s));
  }
  stacks_.clear();
}

}  // namespace carat
