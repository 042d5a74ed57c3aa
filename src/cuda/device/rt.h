// What the kernels and the backend need of a CUDA runtime, in one place: nvcc's on devices, a CPU's for tests
// (cuda/emulate/emulate.h), which run the same sources with all indices and barriers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#ifdef CARAT_CUDA_EMULATE
#include "cuda/emulate/emulate.h"
#elif defined(__CUDACC__)
#include "cuda/device/device.cuh"
#endif

namespace carat::cuda {

using Stream = void*;
using Graph = void*;
using Event = void*;

struct DeviceProps {
  std::string name;
  int32_t major = 0, minor = 0, sms = 0;
  int64_t mem_total = 0, shared_per_block = 0;
  bool integrated = false;  // its memory is the host's
};

// Empty without a driver or a device; `why` says which.
std::vector<DeviceProps> device_list(std::string* why = nullptr);
void use_device(int index);          // for this thread
bool enable_peer(int from, int to);  // kernels of `from` reach memory of `to` from now on; false: they cannot
void memory_left(int64_t& free, int64_t& total);

void* device_alloc(size_t bytes);  // null: out of memory
void device_free(void* p);
void* pinned_alloc(size_t bytes);
void pinned_free(void* p);
// Memory of the host from elsewhere, whole pages, so that the device copies from it by itself; false: it is
// refused.
bool pin(void* p, size_t bytes);
void unpin(void* p);

Stream make_stream();
void destroy_stream(Stream s);
void copy_async(void* dst, const void* src, size_t bytes, Stream s);  // any kinds of memory
// `rows` pieces of `bytes`, at distances dst_pitch and src_pitch.
void copy_rows_async(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t bytes,
                     size_t rows, Stream s);
void zero_async(void* p, size_t bytes, Stream s);
// f(argument) on a thread of the host, behind what came before it; f must not throw, nor use the device.
void call_host_async(void (*f)(void*), void* argument, Stream s);
void sync(Stream s);  // DeviceError if anything before it failed

// Launches between the two become one graph; false: graphs are not to be had here.
bool begin_capture(Stream s);
Graph end_capture(Stream s);
void abandon_capture(Stream s);  // whatever became of it
void launch_graph(Graph g, Stream s);
void destroy_graph(Graph g);

// Moments on the stream, and the seconds between two of them after sync().
Event make_event();
void record_event(Event e, Stream s);
void record_event_in_graph(Event e, Stream s);  // between begin_capture() and end_capture()
void wait_event(Stream s, Event e);             // what comes on s from now on waits for it
double seconds_between(Event first, Event second);
void sleep_until(Event e);  // where sync() would keep a core of the host busy
void destroy_event(Event e);

// An array of which blocks of threads copy boxes of box_pages x box_rows rows x 128 bytes at once (copy_box,
// sm_90): halves, or floats; rows are `pitch` bytes apart, pages `page` bytes.
struct BoxArray {
  const void* base;
  bool floats;
  int32_t columns;
  int64_t pitch;
  int32_t rows;
  int64_t page;
  int32_t pages = 1 << 24;  // those that there are, or more where nothing behind the last one is asked for
  int32_t box_rows = 64, box_pages = 1;
};
// A BoxArray as kernels take it: a __grid_constant__. make_box_map() is false without a driver that can make
// one, or if an address or a distance is no multiple of 16.
struct alignas(128) BoxMap {
  uint64_t words[16];
};
bool make_box_map(BoxMap& m, const BoxArray& a);

// DeviceError if a launch was refused.
void check_launch(const char* what);  // behind every kernel
#ifdef CARAT_CUDA_EMULATE
inline int64_t launch_count() { return 0; }
#else
int64_t launch_count();  // how often it was called
#endif

// Where and how kernels are launched.
struct Launcher {
  Stream stream = nullptr;
  Stream beside = nullptr;  // for what may run beside `stream`; null: nothing does
  Event turn = nullptr;     // where one waits for the other
  int32_t sms = 1;
  int64_t shared = 48 << 10;  // bytes a block may have
  bool overlap = false;       // programmatic dependent launch (sm_90 and later)
  int32_t major = 0;          // of the compute capability
  // Blocks wait for words from those before them (put_word), which run beside them or ran before: they start
  // in the order of their numbers.
  bool in_order = false;
  // Processors give shared memory all they can: one that gives less would have to be empty before it has room
  // for blocks of the next kernel. Kernels that read weights to registers want the first cache, though.
  bool most_shared = false;
};
inline Launcher in_order(Launcher l) {
  l.in_order = true;
  return l;
}

}  // namespace carat::cuda
