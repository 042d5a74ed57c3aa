// The CUDA runtime, linked statically: it looks for the driver when it is first asked, so that the program
// starts without one.
#include "cuda/device/rt.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>

#include "base/error.h"

namespace carat::cuda {
namespace {

cudaStream_t native(Stream s) { return static_cast<cudaStream_t>(s); }

void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  cudaGetLastError();  // what is not sticky is forgotten
  const bool sticky =
      e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorECCUncorrectable;
  throw DeviceError(
      fmt::format("CUDA: {} failed: {} ({})", what, cudaGetErrorString(e), cudaGetErrorName(e)),
      sticky ? "the device's context is lost: restart the program; if it happens again, run it under "
               "compute-sanitizer and report it"
             : "see nvidia-smi for the device's state; --device cpu computes without it");
}

}  // namespace

std::vector<DeviceProps> device_list(std::string* why) {
  int n = 0;
  const cudaError_t e = cudaGetDeviceCount(&n);
  if (e != cudaSuccess || n == 0) {
    cudaGetLastError();
    if (why) {
      *why = e == cudaErrorInsufficientDriver   ? "no NVIDIA driver, or one older than this build's CUDA"
             : e == cudaErrorNoDevice || n == 0 ? "no device is visible"
                                                : cudaGetErrorString(e);
    }
    return {};
  }
  std::vector<DeviceProps> out;
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp p{};
    check(cudaGetDeviceProperties(&p, i), "asking for a device's properties");
    out.push_back({p.name, p.major, p.minor, p.multiProcessorCount, static_cast<int64_t>(p.totalGlobalMem),
                   static_cast<int64_t>(p.sharedMemPerBlockOptin), p.integrated != 0});
  }
  return out;
}

void use_device(int index) { check(cudaSetDevice(index), "choosing a device"); }

bool enable_peer(int from, int to) {
  int can = 0;
  if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || !can) {
    cudaGetLastError();
    return false;
  }
  use_device(from);
  const cudaError_t e = cudaDeviceEnablePeerAccess(to, 0);
  cudaGetLastError();
  return e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled;
}

void memory_left(int64_t& free, int64_t& total) {
  size_t f = 0, t = 0;
  check(cudaMemGetInfo(&f, &t), "asking for free memory");
  free = static_cast<int64_t>(f), total = static_cast<int64_t>(t);
}

void* device_alloc(size_t bytes) {
  void* p = nullptr;
  const cudaError_t e = cudaMalloc(&p, bytes);
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(e, "allocating");
  return p;
}
void device_free(void* p) { cudaFree(p); }  // at the end of a process there may be no context any more
void* pinned_alloc(size_t bytes) {
  void* p = nullptr;
  check(cudaMallocHost(&p, bytes), "allocating pinned memory");
  return p;
}
void pinned_free(void* p) { cudaFreeHost(p); }
bool pin(void* p, size_t bytes) {
  if (cudaHostRegister(p, bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}
void unpin(void* p) { cudaHostUnregister(p); }

Stream make_stream() {
  cudaStream_t s = nullptr;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "making a stream");
  return s;
}
void destroy_stream(Stream s) { cudaStreamDestroy(native(s)); }
void copy_async(void* dst, const void* src, size_t bytes, Stream s) {
  check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, native(s)), "copying");
}
void copy_rows_async(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t bytes,
                     size_t rows, Stream s) {
  check(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, bytes, rows, cudaMemcpyDefault, native(s)),
        "copying rows");
}
void zero_async(void* p, size_t bytes, Stream s) {
  check(cudaMemsetAsync(p, 0, bytes, native(s)), "zeroing");
}
void call_host_async(void (*f)(void*), void* argument, Stream s) {
  check(cudaLaunchHostFunc(native(s), f, argument), "calling the host");
}
void sync(Stream s) { check(cudaStreamSynchronize(native(s)), "a step"); }

bool begin_capture(Stream s) {
  check(cudaStreamBeginCapture(native(s), cudaStreamCaptureModeThreadLocal), "recording a graph");
  return true;
}
Graph end_capture(Stream s) {
  cudaGraph_t g = nullptr;
  check(cudaStreamEndCapture(native(s), &g), "recording a graph");
  cudaGraphExec_t x = nullptr;
  const cudaError_t e = cudaGraphInstantiate(&x, g, 0);
  cudaGraphDestroy(g);
  check(e, "building a graph");
  return x;
}
void abandon_capture(Stream s) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t g = nullptr;
  if (cudaStreamIsCapturing(native(s), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone)
    if (cudaStreamEndCapture(native(s), &g) == cudaSuccess && g) cudaGraphDestroy(g);
  cudaGetLastError();
}
void launch_graph(Graph g, Stream s) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(g), native(s)), "starting a step");
}
void destroy_graph(Graph g) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); }

Event make_event() {
  cudaEvent_t e = nullptr;
  check(cudaEventCreateWithFlags(&e, cudaEventBlockingSync), "making an event");
  return e;
}
void record_event(Event e, Stream s) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(e), native(s)), "recording an event");
}
void record_event_in_graph(Event e, Stream s) {
  check(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(e), native(s), cudaEventRecordExternal),
        "recording an event in a graph");
}
void wait_event(Stream s, Event e) {
  check(cudaStreamWaitEvent(native(s), static_cast<cudaEvent_t>(e), 0), "waiting for an event");
}
double seconds_between(Event first, Event second) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(first), static_cast<cudaEvent_t>(second)),
        "timing");
  return ms / 1e3;
}
void sleep_until(Event e) { check(cudaEventSynchronize(static_cast<cudaEvent_t>(e)), "a step"); }
void destroy_event(Event e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); }

bool make_box_map(BoxMap& m, const BoxArray& a) {
  static_assert(sizeof(BoxMap) == sizeof(CUtensorMap) && alignof(BoxMap) >= alignof(CUtensorMap));
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
        cudaSuccess)
      cudaGetLastError();
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  if (!encode) return false;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(a.columns), static_cast<cuuint64_t>(a.rows),
                               static_cast<cuuint64_t>(a.pages)};
  const cuuint64_t distances[2] = {static_cast<cuuint64_t>(a.pitch), static_cast<cuuint64_t>(a.page)};
  const cuuint32_t box[3] = {a.floats ? 32u : 64u, static_cast<cuuint32_t>(a.box_rows),
                             static_cast<cuuint32_t>(a.box_pages)},
                   every[3] = {1, 1, 1};
  return encode(reinterpret_cast<CUtensorMap*>(&m),
                a.floats ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                const_cast<void*>(a.base), sizes, distances, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

namespace {
std::atomic<int64_t> launches{0};
}
void check_launch(const char* what) {
  ++launches;
  check(cudaGetLastError(), what);
}
int64_t launch_count() { return launches; }

}  // namespace carat::cuda
