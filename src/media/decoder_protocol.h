// What Decoder and its processes say to each other: a head, then `size` bytes. Both are the same program, so
// heads are plain structs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace carat {

inline constexpr const char* kDecoderArgument = "--inner-decoder";

enum class DecodeTask : int32_t { info, picture, sound, misbehave };
struct DecodeRequest {
  DecodeTask task{};
  int32_t side = 0;
  int64_t pixels = 0;
  double seconds = 0;
  uint64_t size = 0;
};
struct DecodeReply {
  int32_t failed = 0;  // 1: the bytes are a message, a zero and a hint
  int32_t width = 0, height = 0, animated = 0;
  char format[16] = "";
  uint64_t size = 0;
};
struct DecoderHello {
  uint64_t memory_bytes = 0;  // what it is to have
  char missing[64] = "";      // its answer
};

// All bytes, or false: the other side is gone, or slower than the socket's time limit.
bool receive_all(int fd, void* data, size_t n);

}  // namespace carat
