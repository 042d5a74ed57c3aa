#include "cuda/device/room.h"

#include <doctest/doctest.h>

using carat::cuda::MemoryRoom;
using carat::cuda::room_within;
using carat::cuda::unified_room;

namespace {
constexpr int64_t kGiB = int64_t{1} << 30;
}

TEST_CASE("a limit makes a device as small as it says, with what others use counted in") {
  const MemoryRoom card{70 * kGiB, 80 * kGiB};  // 10 GiB are in use
  const MemoryRoom held = room_within(card, 24 * kGiB, 1);
  CHECK(held.total == 24 * kGiB);
  CHECK(held.free == 14 * kGiB);
  CHECK(room_within(card, 0, 1).free == 70 * kGiB);
  CHECK(room_within(card, 100 * kGiB, 1).total == 80 * kGiB);
  CHECK(room_within(card, 8 * kGiB, 1).free == 0);
}

TEST_CASE("utilization is a share of the whole, limited or not") {
  CHECK(room_within({80 * kGiB, 80 * kGiB}, 0, 0.5).free == 40 * kGiB);
  CHECK(room_within({80 * kGiB, 80 * kGiB}, 20 * kGiB, 0.5).free == 10 * kGiB);
}

TEST_CASE("a GPU that shares the host's memory has what the kernel would give, less a reserve") {
  const MemoryRoom driver{10 * kGiB, 128 * kGiB};  // a model's file fills the page cache
  const char* meminfo =
      "MemTotal:       134217728 kB\nMemFree:        10485760 kB\nMemAvailable:   104857600 kB\n";
  CHECK(unified_room(driver, meminfo).free == 100 * kGiB - 8 * kGiB);
  CHECK(unified_room(driver, meminfo).total == 128 * kGiB);
  CHECK(unified_room(driver, "MemFree: 1 kB\n").free == 10 * kGiB);
  CHECK(unified_room(driver, "MemAvailable: none\n").free == 10 * kGiB);
  CHECK(unified_room(driver, "MemAvailable: 1024 kB\n").free == 0);
}
