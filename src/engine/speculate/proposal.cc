#include "engine/speculate/proposal.h"

#include <algorithm>

namespace carat {

void make_sane(Proposal& p) {
  if (!p.parent.empty() && p.parent.size() != p.token.size()) p = {};
  if (p.confidence.size() != p.token.size()) p.confidence.clear();
  if (p.law.size() < p.token.size() || !p.parent.empty()) p.law.clear();
  if (!p.law.empty()) p.law.resize(p.token.size());
  int32_t n = 0;
  while (n < static_cast<int32_t>(p.token.size()) && p.parent_of(n) >= -1 && p.parent_of(n) < n) ++n;
  p.shorten(static_cast<size_t>(n));
}

bool is_chain(const Proposal& p) {
  for (int32_t i = 0; i < static_cast<int32_t>(p.parent.size()); ++i)
    if (p.parent_of(i) != i - 1) return false;
  return true;
}

int32_t path_length(const Proposal& p) {
  std::vector<int32_t> depth(p.token.size());
  int32_t most = 0;
  for (size_t i = 0; i < depth.size(); ++i) {
    const int32_t parent = p.parent_of(static_cast<int32_t>(i));
    depth[i] = parent < 0 ? 1 : depth[static_cast<size_t>(parent)] + 1;
    most = std::max(most, depth[i]);
  }
  return most;
}

Proposal keep_nodes(const Proposal& p, const std::vector<bool>& keep) {
  Proposal out;
  std::vector<int32_t> place(p.token.size(), -1);
  bool chain = true;
  for (size_t i = 0; i < p.token.size(); ++i) {
    if (!keep[i]) continue;
    const int32_t parent = p.parent_of(static_cast<int32_t>(i));
    place[i] = static_cast<int32_t>(out.token.size());
    out.parent.push_back(parent < 0 ? -1 : place[static_cast<size_t>(parent)]);
    chain = chain && out.parent.back() == place[i] - 1;
    out.token.push_back(p.token[i]);
    if (!p.confidence.empty()) out.confidence.push_back(p.confidence[i]);
    if (!p.law.empty()) out.law.push_back(p.law[i]);
  }
  if (chain) out.parent.clear();
  return out;
}

int32_t child_of(const Proposal& p, int32_t node, Token token) {
  for (int32_t i = node + 1; i < static_cast<int32_t>(p.token.size()); ++i)
    if (p.parent_of(i) == node && p.token[static_cast<size_t>(i)] == token) return i;
  return -1;
}
int32_t first_child(const Proposal& p, int32_t node) {
  for (int32_t i = node + 1; i < static_cast<int32_t>(p.token.size()); ++i)
    if (p.parent_of(i) == node) return i;
  return -1;
}

}  // namespace carat
