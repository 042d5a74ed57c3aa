#include "cuda/links.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cuda/cuda.h"

namespace carat::cuda {
namespace {

constexpr size_t kWords = 2 * kMaxParts, kHostWords = 2 * kMaxParts * kMaxParts;
constexpr int32_t kTestWords = 4096, kTestRounds = 250;
constexpr size_t kBoxBytes = 8 * kBoxWords;
constexpr uint32_t kRenewal = 1 << 18;  // steps, whose numbers fill a quarter of 32 bits

uint32_t* words_of(const Memory& m) { return reinterpret_cast<uint32_t*>(m.data()); }

}  // namespace

Links::Links(std::vector<int> devices, bool peers, double patience)
    : devices_(std::move(devices)),
      patience_(static_cast<int64_t>(patience * 1e9)),
      peers_(devices_.size()),
      staging_(devices_.size()) {
  host_ = std::make_unique<Pinned>((kHostWords + 16) * 4);
  std::memset(host_->data(), 0, host_->size());
  for (const int d : devices_) {
    use_device(d);
    words_.emplace_back((kWords + 16) * 4);
    const Stream s = make_stream();
    zero_async(words_.back().data(), words_.back().size(), s);
    sync(s);
    destroy_stream(s);
  }
  const auto n = static_cast<int32_t>(devices_.size());
  for (int32_t a = 0; peers && a < n; ++a)
    for (int32_t b = a + 1; b < n; ++b)
      if (passes(a, b)) peers_[static_cast<size_t>(a)] |= 1U << b, peers_[static_cast<size_t>(b)] |= 1U << a;
  make_boxes();
}
Links::~Links() = default;

void Links::make_boxes() {
  const size_t n = devices_.size(), all = 2 * n * kBoxBytes;
  for (size_t p = 0; p < n; ++p) {
    use_device(devices_[p]);
    boxes_.push_back(peers_[p] ? Memory(all) : Memory());
    const bool others = static_cast<size_t>(std::popcount(peers_[p])) + 1 < n;
    host_boxes_.push_back(others ? std::make_unique<Pinned>(all) : nullptr);
  }
  renew(0);
}

// Numbers of shares begin again after 2^32: what words say must not be so old that it looks new.
void Links::renew(uint32_t number) {
  std::fill_n(reinterpret_cast<uint32_t*>(host_->data()), kHostWords, number);
  const std::vector<uint32_t> words(kWords, number);
  for (size_t p = 0; p < devices_.size(); ++p) {
    use_device(devices_[p]);
    const Stream s = make_stream();
    copy_async(words_[p].data(), words.data(), words.size() * 4, s);
    if (boxes_[p].size()) zero_async(boxes_[p].data(), boxes_[p].size(), s);
    if (host_boxes_[p]) std::memset(host_boxes_[p]->data(), 0, host_boxes_[p]->size());
    sync(s);
    destroy_stream(s);
  }
}

ShareBoxes Links::boxes(int32_t part, int32_t turn) const {
  ShareBoxes b;
  const auto n = static_cast<int32_t>(devices_.size());
  const auto box = [&](int32_t taker, int32_t giver) {
    std::byte* all = direct(taker, giver) ? boxes_[static_cast<size_t>(taker)].data()
                                          : host_boxes_[static_cast<size_t>(taker)]->data();
    return reinterpret_cast<uint64_t*>(all + static_cast<size_t>(turn * n + giver) * kBoxBytes);
  };
  for (int32_t p = 0; p < n; ++p)
    if (p != part) b.to[p] = box(p, part), b.from[p] = box(part, p);
  return b;
}

// Both write to each other at the same time, with numbers in every word. Drivers that were patched to allow
// such access are known to return wrong data.
bool Links::passes(int32_t a, int32_t b) {
  const int pair[2] = {devices_[static_cast<size_t>(a)], devices_[static_cast<size_t>(b)]};
  if (!enable_peer(pair[0], pair[1]) || !enable_peer(pair[1], pair[0])) return false;
  struct Side {
    Memory words, wrong;
    Stream stream = nullptr;
    uint32_t result = 3;
  };
  Side side[2];
  std::string why;
  try {
    for (int i = 0; i < 2; ++i) {
      use_device(pair[i]);
      side[i].words = Memory((kTestWords + 1) * 4), side[i].wrong = Memory(4);
      side[i].stream = make_stream();
      zero_async(side[i].words.data(), side[i].words.size(), side[i].stream);
      zero_async(side[i].wrong.data(), 4, side[i].stream);
      sync(side[i].stream);
    }
    std::atomic<bool> failed{false};
    const auto run = [&](int i) {
      try {
        use_device(pair[i]);
        Launcher l;
        l.stream = side[i].stream;
        test_link(l, words_of(side[i].words), words_of(side[1 - i].words), kTestWords, kTestRounds,
                  words_of(side[i].wrong), int64_t{2'000'000'000});
        sync(side[i].stream);
        copy_async(&side[i].result, side[i].wrong.data(), 4, side[i].stream);
        sync(side[i].stream);
      } catch (const Error&) {
        failed = true;
      }
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    if (failed || side[0].result || side[1].result)
      why = side[0].result == 1 || side[1].result == 1 ? "return wrong data" : "do not hear each other";
  } catch (const Error& e) {
    why = e.what();
  }
  for (int i = 0; i < 2; ++i) {
    use_device(pair[i]);
    if (side[i].stream) destroy_stream(side[i].stream);
  }
  if (!why.empty())
    log_warn("cuda:{} and cuda:{} could reach each other's memory but {}: they meet in the host's", pair[0],
             pair[1], why);
  return why.empty();
}

void Links::begin(uint32_t step) {
  if (step % kRenewal == 0) renew(step * kMostShares);
  std::atomic_ref(*(reinterpret_cast<uint32_t*>(host_->data()) + kHostWords)).store(0);
}
void Links::fail() { std::atomic_ref(*(reinterpret_cast<uint32_t*>(host_->data()) + kHostWords)).store(1); }
uint32_t Links::error() const {
  return std::atomic_ref(*(reinterpret_cast<uint32_t*>(host_->data()) + kHostWords)).load();
}

void Links::reserve(int32_t part, size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& all = staging_[static_cast<size_t>(part)];
  // Programs that were recorded keep the memory they were recorded with.
  if (all.empty() || all.back()->size() < bytes) all.push_back(std::make_unique<Pinned>(bytes));
}

ShareLink Links::of(int32_t part) const {
  const std::lock_guard lock(mutex_);
  ShareLink l;
  l.peers = peers_[static_cast<size_t>(part)];
  l.mine = words_of(words_[static_cast<size_t>(part)]);
  l.arrived = reinterpret_cast<int32_t*>(l.mine + kWords);
  l.host = reinterpret_cast<uint32_t*>(host_->data());
  l.error = l.host + kHostWords;
  for (size_t p = 0; p < devices_.size(); ++p) {
    l.theirs[p] = words_of(words_[p]);
    l.staging[p] = staging_[p].empty() ? nullptr : staging_[p].back()->data();
  }
  l.patience = patience_;
  return l;
}

bool Links::all_direct() const {
  for (size_t a = 0; a < devices_.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (!direct(static_cast<int32_t>(a), static_cast<int32_t>(b))) return false;
  return true;
}

std::string Links::text() const {
  std::string direct_pairs, host_pairs;
  for (size_t a = 0; a < devices_.size(); ++a)
    for (size_t b = a + 1; b < devices_.size(); ++b) {
      std::string& s = direct(static_cast<int32_t>(a), static_cast<int32_t>(b)) ? direct_pairs : host_pairs;
      s += fmt::format("{}{}-{}", s.empty() ? "" : ", ", devices_[a], devices_[b]);
    }
  if (host_pairs.empty()) return "devices reach each other's memory";
  if (direct_pairs.empty()) return "devices meet in the host's memory";
  return fmt::format("devices {} reach each other's memory, {} meet in the host's", direct_pairs, host_pairs);
}

}  // namespace carat::cuda

namespace carat {

std::shared_ptr<DeviceLinks> make_cuda_links(const std::vector<int>& devices, bool peers, double patience,
                                             std::string* text, bool* direct) {
  auto links = std::make_shared<cuda::Links>(devices, peers, patience);
  if (text) *text = links->text();
  if (direct) *direct = links->all_direct();
  return links;
}

}  // namespace carat
