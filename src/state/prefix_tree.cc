#include "state/prefix_tree.h"

#include <algorithm>

#include "base/error.h"

namespace carat {
namespace {

size_t common_start(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

}  // namespace

PrefixTree::~PrefixTree() {
  std::vector<Node*> nodes;
  collect(root_, nodes);
  for (const Node* n : nodes) pool_.drop_page(n->page);
}

void PrefixTree::collect(Node& node, std::vector<Node*>& out) const {
  for (size_t next = out.size(), done = next;; ++next) {
    Node& n = next == done ? node : *out[next - 1];
    for (auto& [tokens, child] : n.children) out.push_back(child.get());
    if (next == out.size()) return;
  }
}

// The child that shares the longest start with the tokens: keys are ordered, so it is one of two.
PrefixTree::Child PrefixTree::best_child(Node& node, std::span<const int32_t> tokens, size_t& common) {
  const auto page = tokens.first(std::min(tokens.size(), static_cast<size_t>(pool_.limits().page_tokens)));
  const auto after = node.children.lower_bound({page.begin(), page.end()});
  Child best = node.children.end();
  common = 0;
  const auto consider = [&](Child c) {
    if (const size_t n = common_start(c->first, page); n > common) best = c, common = n;
  };
  if (after != node.children.begin()) consider(std::prev(after));
  if (after != node.children.end()) consider(after);
  return best;
}

std::vector<PrefixTree::Node*> PrefixTree::path(std::span<const int32_t> tokens, int32_t& known) {
  std::vector<Node*> nodes;
  known = 0;
  for (Node* node = &root_;;) {
    size_t common;
    const Child child = best_child(*node, tokens.subspan(static_cast<size_t>(known)), common);
    if (child == node->children.end()) return nodes;
    node = child->second.get();
    node->used = ++clock_;
    nodes.push_back(node);
    known += static_cast<int32_t>(common);
    if (common < node->tokens->size()) return nodes;
  }
}

PrefixTree::Match PrefixTree::match(std::span<const int32_t> tokens) {
  Match m;
  const std::vector<Node*> nodes = path(tokens, m.known);
  if (checkpoints_)
    start_from_checkpoint(nodes, m);
  else
    m.start = m.known;
  for (const Node* n : nodes)
    if (n->begin < m.start) m.pages.push_back(n->page);
  return m;
}

void PrefixTree::start_from_checkpoint(std::span<Node* const> nodes, Match& m) {
  for (auto n = nodes.rbegin(); n != nodes.rend() && !m.checkpoint; ++n)
    for (const Entries::iterator e : (*n)->entries) {
      // Behind this node it may be another text's.
      const int32_t start = std::min({m.known, (*n)->end(), e->checkpoint->to});
      if (e->checkpoint->from > start || start <= m.start) continue;
      m.start = start;
      m.checkpoint = e->checkpoint;
      e->used = ++clock_;
    }
}

// The child of `node` that holds the first page of the tokens, made if it is not there.
PrefixTree::Node* PrefixTree::step(Node& node, std::span<const int32_t> tokens, int32_t page) {
  size_t common;
  const Child near = best_child(node, tokens, common);
  const bool has = near != node.children.end();
  if (has && common == tokens.size()) return near->second.get();
  auto made = std::make_unique<Node>();
  Node* const n = made.get();
  n->parent = &node;
  n->begin = node.tokens ? node.end() : 0;
  n->page = page;
  // What ends inside these tokens is part of them.
  Node* const shorter = has && common == near->first.size() ? near->second.get() : nullptr;
  if (!shorter || shorter->page != page) {
    pool_.keep_page(page);
    ++nodes_;
  }
  if (shorter) {
    n->entries.swap(shorter->entries);
    for (const Entries::iterator e : n->entries) std::replace(e->nodes.begin(), e->nodes.end(), shorter, n);
    if (shorter->page != page) {
      pool_.drop_page(shorter->page);
      --nodes_;
    }
    node.children.erase(near);
  }
  const auto at =
      node.children.emplace(std::vector<int32_t>(tokens.begin(), tokens.end()), std::move(made)).first;
  n->tokens = &at->first;
  changed_ = true;
  return n;
}

void PrefixTree::insert(std::span<const int32_t> tokens, std::span<const int32_t> pages) {
  const auto page_tokens = static_cast<size_t>(pool_.limits().page_tokens);
  Node* node = &root_;
  for (size_t i = 0; i * page_tokens < tokens.size(); ++i) {
    const size_t n = std::min(page_tokens, tokens.size() - i * page_tokens);
    node = step(*node, tokens.subspan(i * page_tokens, n), pages[i]);
    node->used = ++clock_;
  }
}

void PrefixTree::add(std::span<const int32_t> tokens, Checkpoint checkpoint) {
  int32_t known;
  const std::vector<Node*> nodes = path(tokens, known);
  CARAT_CHECK(known == checkpoint.to && checkpoint.to == static_cast<int32_t>(tokens.size()),
              "{} of {} tokens known", known, checkpoint.to);
  const auto entry = entries_.insert(
      entries_.end(), {std::make_shared<const Checkpoint>(std::move(checkpoint)), {}, ++clock_});
  const Checkpoint& c = *entry->checkpoint;
  replace_by(c, nodes);
  checkpoint_bytes_ += c.held();
  changed_ = true;
  for (Node* n : nodes) {
    if (n->end() < c.from || n->begin >= c.to) continue;
    n->entries.push_back(entry);
    entry->nodes.push_back(n);
  }
  if (entry->nodes.empty()) remove(entry);
}

// Checkpoints of the same text whose later half the newer one covers: each is megabytes.
void PrefixTree::replace_by(const Checkpoint& newer, std::span<Node* const> nodes) {
  std::vector<Entries::iterator> old;
  for (Node* n : nodes)
    for (const Entries::iterator e : n->entries) {
      const Checkpoint& c = *e->checkpoint;
      if (e->nodes.back() == n && c.to <= newer.to && newer.from <= c.from + (c.to - c.from) / 2)
        old.push_back(e);
    }
  for (const Entries::iterator e : old) remove(e);
}

bool PrefixTree::covers(std::span<const int32_t> tokens) const {
  auto& self = const_cast<PrefixTree&>(*this);
  int32_t known;
  const std::vector<Node*> nodes = self.path(tokens, known);
  const auto n = static_cast<int32_t>(tokens.size());
  if (known < n || n == 0 || !checkpoints_) return known == n;
  const auto& entries = nodes.back()->entries;
  return std::any_of(entries.begin(), entries.end(),
                     [&](const auto& e) { return e->checkpoint->from <= n && e->checkpoint->to >= n; });
}

bool PrefixTree::erase(std::span<const int32_t> tokens) {
  int32_t known;
  const std::vector<Node*> nodes = path(tokens, known);
  if (known < static_cast<int32_t>(tokens.size()) || nodes.empty()) return false;
  for (Node* n = nodes.back(); n != &root_ && n->children.empty();) {
    Node* const parent = n->parent;
    remove(n);
    n = parent;
  }
  return true;
}

// The entry allows no start at the node any more.
void PrefixTree::leave(Entries::iterator entry, Node* node) {
  changed_ = true;
  std::erase(node->entries, entry);
  std::erase(entry->nodes, node);
  if (entry->nodes.empty()) remove(entry);
}

void PrefixTree::remove(Entries::iterator entry) {
  for (Node* n : entry->nodes) std::erase(n->entries, entry);
  checkpoint_bytes_ -= entry->checkpoint->held();
  changed_ = true;
  entries_.erase(entry);
}

void PrefixTree::remove(Node* leaf) {
  CARAT_CHECK(leaf->children.empty() && leaf->parent, "not a leaf");
  while (!leaf->entries.empty()) leave(leaf->entries.back(), leaf);
  pool_.drop_page(leaf->page);
  --nodes_;
  changed_ = true;
  if (leaf->told) forgotten_.push_back(leaf->hash);
  auto& siblings = leaf->parent->children;
  siblings.erase(siblings.find(*leaf->tokens));
}

PrefixTree::Node* PrefixTree::oldest_leaf(bool idle_only) {
  std::vector<Node*> nodes;
  collect(root_, nodes);
  Node* oldest = nullptr;
  for (Node* n : nodes) {
    if (!n->children.empty() || (idle_only && !pool_.idle(n->page))) continue;
    if (!oldest || n->used < oldest->used) oldest = n;
  }
  return oldest;
}

void PrefixTree::trim(int64_t most) {
  while (bytes() > most) {
    Node* const leaf = oldest_leaf(false);
    const auto entry = oldest_entry();
    if (entry != entries_.end() && (!leaf || entry->used < leaf->used))
      remove(entry);
    else
      remove(leaf);
  }
}

PrefixTree::Entries::iterator PrefixTree::oldest_entry() {
  return std::min_element(entries_.begin(), entries_.end(),
                          [](const Entry& a, const Entry& b) { return a.used < b.used; });
}

bool PrefixTree::free_checkpoint() {
  if (entries_.empty()) return false;
  remove(oldest_entry());
  return true;
}

bool PrefixTree::free_page() {
  if (pool_.idle_pages() == 0) return false;
  const int32_t free = pool_.free_pages();
  while (pool_.free_pages() == free) {
    Node* leaf = oldest_leaf(true);
    if (!leaf) leaf = oldest_leaf(false);
    if (!leaf) return false;
    remove(leaf);
  }
  return true;
}

}  // namespace carat
