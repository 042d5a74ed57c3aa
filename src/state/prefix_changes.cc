// PrefixTree's account of itself: a walk over all nodes, in which a page counts as known if some text that
// goes on with it lets a sequence start at its end or behind it.
#include "state/prefix_changes.h"

#include <algorithm>

#include "state/prefix_tree.h"

namespace carat {
namespace {

uint64_t hash_of(uint64_t parent, const std::vector<int32_t>& tokens) {
  uint64_t h = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) h = (h ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
  };
  add(parent, 8);
  for (const int32_t t : tokens) add(static_cast<uint32_t>(t), 4);
  return h == 0 ? 1 : h;
}

}  // namespace

// Tokens that are none are names (of texts that are one client's alone, of pictures): nobody can ask for
// them.
bool PrefixTree::can_be_told(const Node& n) const {
  const auto& t = *n.tokens;
  return static_cast<int32_t>(t.size()) == pool_.limits().page_tokens &&
         std::none_of(t.begin(), t.end(), [](int32_t token) { return token < 0; });
}

// nodes: parents before their children.
void PrefixTree::find_known(std::span<Node* const> nodes) const {
  for (Node* n : nodes) n->starts_behind = false;
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    Node& n = **it;
    n.known = !checkpoints_ || n.starts_behind ||
              std::any_of(n.entries.begin(), n.entries.end(),
                          [&](const auto& e) { return e->checkpoint->to >= n.end(); });
    if (n.starts_behind || !n.entries.empty()) n.parent->starts_behind = true;
  }
}

PrefixChanges PrefixTree::changes() {
  PrefixChanges out;
  out.removed.swap(forgotten_);
  changed_ = false;
  std::vector<Node*> nodes, open;
  for (Node* at = &root_;;) {  // in depth first, so that runs stay together
    for (auto& [tokens, child] : at->children) open.push_back(child.get());
    if (open.empty()) break;
    at = open.back();
    open.pop_back();
    nodes.push_back(at);
  }
  find_known(nodes);
  const Node* last = nullptr;  // whose run goes on
  for (Node* n : nodes) {
    Node* const parent = n->parent;
    const bool tell = n->known && can_be_told(*n) && (parent == &root_ || parent->told);
    if (!tell && n->told) out.removed.push_back(n->hash);
    if (tell && !n->told) {
      const uint64_t before = parent == &root_ ? 0 : parent->hash;
      if (n->hash == 0) n->hash = hash_of(before, *n->tokens);
      if (out.stored.empty() || parent != last) out.stored.push_back({before, {}, {}});
      PrefixRun& run = out.stored.back();
      run.hashes.push_back(n->hash);
      run.tokens.insert(run.tokens.end(), n->tokens->begin(), n->tokens->end());
      last = n;
    }
    n->told = tell;
  }
  return out;
}

void PrefixTree::tell_anew() {
  std::vector<Node*> nodes;
  collect(root_, nodes);
  for (Node* n : nodes) n->told = false;
  forgotten_.clear();
  changed_ = true;
}

}  // namespace carat
