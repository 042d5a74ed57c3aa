// Which texts are in the pages already: a radix tree whose edges are pages of tokens, the last one of a text
// maybe partly filled. It keeps the pages, and checkpoints of what is not in pages; it says how far a new
// text is known, and forgets what was of use longest ago. One thread.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "state/checkpoint.h"
#include "state/prefix_changes.h"
#include "state/sequence.h"

namespace carat {

class PrefixTree {
 public:
  // page_bytes: of a page in all layers. checkpoints: without one nothing can start (needs_checkpoint).
  PrefixTree(PagePool& pages, int64_t page_bytes, bool checkpoints)
      : pool_(pages), page_bytes_(page_bytes), checkpoints_(checkpoints) {}
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  struct Match {
    int32_t known = 0;                             // tokens at the beginning that are in pages
    int32_t start = 0;                             // positions a sequence can start from, <= known
    std::vector<int32_t> pages;                    // of those
    std::shared_ptr<const Checkpoint> checkpoint;  // if one is needed
  };
  // What is known of `tokens`; it counts as used.
  Match match(std::span<const int32_t> tokens);
  // tokens are those of committed positions, pages theirs: sequences hold them now.
  void insert(std::span<const int32_t> tokens, std::span<const int32_t> pages);
  // Of a sequence whose tokens have been inserted. Earlier ones go that allow little more.
  void add(std::span<const int32_t> tokens, Checkpoint checkpoint);
  // Whether a sequence could start at the end of these tokens.
  bool covers(std::span<const int32_t> tokens) const;
  // Forgets a text from where no other goes on. False if it was not known.
  bool erase(std::span<const int32_t> tokens);

  // Forgets the least recently used until no more bytes are held.
  void trim(int64_t bytes);
  // Frees a page that only the tree holds; false if there is none.
  bool free_page();
  // Forgets the checkpoint that was of use longest ago; false if there is none.
  bool free_checkpoint();
  int64_t page_bytes() const { return page_bytes_; }
  int64_t bytes() const { return nodes_ * page_bytes_ + checkpoint_bytes_; }
  int64_t pages() const { return nodes_; }
  int64_t checkpoints() const { return static_cast<int64_t>(entries_.size()); }

  // What has changed since the last call, of whole pages behind whose end a start is possible; a walk over
  // all nodes.
  PrefixChanges changes();
  bool changed() const { return changed_; }
  void tell_anew();  // the next changes() say all there is

 private:
  struct Node;
  struct Entry {  // a checkpoint, and the nodes on whose positions it lets one start
    std::shared_ptr<const Checkpoint> checkpoint;
    std::vector<Node*> nodes;  // from the root on
    uint64_t used = 0;
  };
  using Entries = std::list<Entry>;
  struct Node {
    std::map<std::vector<int32_t>, std::unique_ptr<Node>> children;  // no key begins another
    Node* parent = nullptr;
    const std::vector<int32_t>* tokens = nullptr;  // its key
    int32_t begin = 0;                             // positions before it
    int32_t page = -1;
    uint64_t used = 0;
    std::vector<Entries::iterator> entries;
    uint64_t hash = 0;  // once it has been told
    bool told = false, known = false, starts_behind = false;

    int32_t end() const { return begin + static_cast<int32_t>(tokens->size()); }
  };
  using Child = std::map<std::vector<int32_t>, std::unique_ptr<Node>>::iterator;

  // Nodes along which the tokens go, and how many of them.
  std::vector<Node*> path(std::span<const int32_t> tokens, int32_t& known);
  Node* step(Node& node, std::span<const int32_t> tokens, int32_t page);
  Child best_child(Node& node, std::span<const int32_t> tokens, size_t& common);
  void start_from_checkpoint(std::span<Node* const> nodes, Match& m);
  void replace_by(const Checkpoint& newer, std::span<Node* const> nodes);
  void leave(Entries::iterator entry, Node* node);
  void remove(Entries::iterator entry);
  void remove(Node* leaf);
  Node* oldest_leaf(bool idle_only);
  Entries::iterator oldest_entry();
  void collect(Node& node, std::vector<Node*>& out) const;
  bool can_be_told(const Node& node) const;
  void find_known(std::span<Node* const> nodes) const;

  PagePool& pool_;
  const int64_t page_bytes_;
  const bool checkpoints_;
  Node root_;
  Entries entries_;
  int64_t nodes_ = 0, checkpoint_bytes_ = 0;
  uint64_t clock_ = 0;
  std::vector<uint64_t> forgotten_;  // of nodes that had been told
  bool changed_ = false;
};

}  // namespace carat
