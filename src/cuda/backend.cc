// The CUDA backend: one device, one stream. A program's launches are recorded once and replayed as a graph.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cuda/cuda.h"
#include "cuda/device/room.h"
#include "cuda/executable.h"
#include "cuda/guest.h"
#include "cuda/links.h"
#include "cuda/matmul/table.h"
#include "cuda/quant/packed.h"
#include "cuda/staged.h"
#include "cuda/turns.h"

namespace carat {
namespace cuda {

Memory::Memory(size_t bytes) : n_(bytes) {
  if (bytes == 0) return;
  p_ = static_cast<std::byte*>(device_alloc(bytes));
  if (p_) return;
  int64_t free = 0, total = 0;
  memory_left(free, total);
  throw Error(fmt::format("the CUDA device has no {} MiB left ({} of {} MiB free)", (bytes >> 20) + 1,
                          free >> 20, total >> 20),
              "use a smaller context (-c), a smaller cache type (-ctk, -ctv, --kv-policy small), a smaller "
              "model, or --device cpu");
}
Memory::~Memory() {
  if (p_) device_free(p_);
}

CudaExecutable::~CudaExecutable() {
  if (graph) destroy_graph(graph);
}

namespace {

class CudaBackend : public Backend {
 public:
  CudaBackend(int index, DeviceProps device, const CudaOptions& options,
              std::shared_ptr<Turns> host = nullptr)
      : index_(index),
        guest_(host != nullptr),
        turns_(host ? std::move(host) : std::make_shared<Turns>()),
        device_(std::move(device)),
        host_(options.host, options.host_keeps, options.fetches),
        memory_(options.memory),
        memory_limit_(options.memory_limit),
        meminfo_(options.meminfo),
        graphs_(options.graphs) {
    use_device(index_);
    began_ = make_event(), ended_ = make_event(), done_ = make_event();
    context_.launcher = {
        .stream = make_stream(),
        .beside = make_stream(),
        .turn = make_event(),
        .sms = device_.sms,
        .shared = device_.shared_per_block,
        .overlap = Generation{10 * device_.major + device_.minor}.bulk_copies() && forced().generation != 80,
        .major = device_.major};
    tables_ = Memory(sizeof(Tables));
    auto tables = std::make_unique<Tables>();
    fill(*tables);
    copy_async(tables_.data(), tables.get(), sizeof(Tables), stream());
    sync(stream());
    context_.tables = reinterpret_cast<const Tables*>(tables_.data());
    const Generation generation{10 * device_.major + device_.minor, device_.shared_per_block};
    if (const std::string text = older_code(device_.name, generation, kernels_code());
        !text.empty() && !guest_ && forced().generation == 0)
      log_warn("{}", text);
  }
  ~CudaBackend() override {
    staged_ = nullptr;  // its buffers may be in use on the stream
    destroy_event(began_);
    destroy_event(ended_);
    destroy_event(done_);
    destroy_event(context_.launcher.turn);
    destroy_stream(context_.launcher.beside);
    destroy_stream(stream());
  }

  std::unique_ptr<Backend> guest() const {
    CudaOptions options;
    options.memory = memory_, options.memory_limit = memory_limit_, options.meminfo = meminfo_;
    return std::make_unique<CudaBackend>(index_, device_, options, turns_);
  }

  DeviceInfo info() const override {
    use_device(index_);
    DeviceInfo d{fmt::format("cuda:{} {}", index_, device_.name), 0, 0};
    if (host_.backend()) d.name += " + " + host_.backend()->info().name;
    MemoryRoom room;
    memory_left(room.free, room.total);
    if (device_.integrated) room = unified_room(room, read_file(meminfo_));
    room = room_within(room, memory_limit_, memory_);
    d.mem_free = room.free, d.mem_total = room.total;
    return d;
  }
  bool host_memory() const override { return false; }
  int32_t slow_runs() const override { return 2; }
  double device_seconds() const override { return device_seconds_; }
  bool reads_single_copies() const override { return true; }
  bool protects_rows() const override { return true; }
  bool takes_soft_rows() const override { return true; }

  Buffer alloc(size_t bytes) override {
    if (bytes == 0) return {};
    use_device(index_);
    auto m = std::make_shared<Memory>(bytes);
    zero_async(m->data(), bytes, stream());
    std::byte* p = m->data();
    return {p, bytes, [m = std::move(m)](std::byte*) mutable { m.reset(); }};
  }
  void copy(void* dst, const void* src, size_t bytes) override {
    if (bytes == 0) return;
    use_device(index_);
    if (busy_) finish();
    const auto began = now();
    copy_async(dst, src, bytes, stream());
    sync(stream());
    copy_seconds_ += since(began);
  }
  void copy_within(void* dst, const void* src, size_t bytes) override {
    if (bytes == 0) return;
    use_device(index_);
    copy_async(dst, src, bytes, stream());
  }

  // Formats with kernels of their own packed; the others as in the file, rows and slices close together.
  Tensor place_weight(const Tensor& host, WeightUse use, Buffer& owner) override {
    if (host_.keeps(host, use)) return host_.place(host, use, owner);
    use_device(index_);
    const bool pack = use != WeightUse::rows && packs(host.type);
    const int64_t bytes = row_bytes(host.type, host.cols);
    Tensor t = packed_at(host, nullptr);
    if (!pack) {
      t.packing = 0;
      t.pitch = carat::info(host.type).family == Family::cache ? (bytes + 15) / 16 * 16
                                                               : bytes;  // kernels copy 16 bytes at a time
      t.slice_pitch = t.pitch * host.rows;
    }
    auto m = std::make_shared<Memory>(static_cast<size_t>(t.slice_pitch * host.slices));
    t.data = m->data();
    if (device_.integrated && !staged_) staged_ = std::make_unique<Staged>(stream());
    bool read = true;  // and the device needs nothing of the host's any more
    for (int32_t s = 0; s < host.slices; ++s) {
      const std::byte* from = host.data + s * host.slice_pitch;
      read &= pack ? pack_slice(t, s, from, host.pitch)
                   : copy_slice(t.data + s * t.slice_pitch, t.pitch, from, host.pitch, bytes, host.rows);
    }
    if (use == WeightUse::experts && t.type == DType::bf16 && t.pitch % 16 == 0) {
      const Memory word(sizeof(uint32_t));
      const auto n = static_cast<int64_t>(m->size() / 2);
      if (bf16_to_f16(context_.launcher, t.data, n, reinterpret_cast<uint32_t*>(word.data())))
        t.type = DType::f16, t.packing = kBf16AsF16;
    }
    if (!read) sync(stream());
    std::byte* p = t.data;
    owner = {p, m->size(), [m = std::move(m)](std::byte*) mutable { m.reset(); }};
    return t;
  }

  std::unique_ptr<Executable> compile(const Program& program, const StepState* state) override {
    use_device(index_);
    staging_ = Memory(), staged_ = nullptr;  // weights are placed
    return compile_program(program, state, device_, host_, [this](size_t bytes) {
      if (!scratch_ || scratch_->size() < bytes) {
        sync(stream());
        scratch_ = std::make_shared<Memory>(bytes);  // programs keep the memory they were made with
      }
      return scratch_;
    });
  }

  void submit(Executable& executable) override {
    auto& exe = static_cast<CudaExecutable&>(executable);
    use_device(index_);
    if (busy_) finish();  // the pinned image and the partial results are in use until then
    const auto began = now();
    if (exe.host) exe.host->begin(*exe.state);
    upload(exe);
    if (exe.state->soft) place_soft_rows(exe);
    context_.step = reinterpret_cast<const DevStep*>(exe.step.data());
    context_.launcher.most_shared = exe.max_rows == 1;
    turn_ = Turns::Turn(turns_, guest_);
    if (seconds_) {
      launch_timed(exe);
      turn_ = {};
      return;
    }
    busy_ = true;
    const bool longer = !std::equal(image_.unpackings, image_.unpackings + kMaxSpans, exe.unpackings,
                                    [](int32_t now, int32_t most) { return now <= most; });
    if ((exe.runs++ == 1 || (exe.graph && longer)) && graphs_) record(exe);
    exchange_ = exe.exchange;
    if (exchange_ && !exchange_->meet()) {
      busy_ = false, turn_ = {};
      throw OtherPart("another device has failed");
    }
    if (exe.graph) {
      launch_graph(exe.graph, stream());
    } else {
      context_.unpackings = image_.unpackings;
      const int64_t before = launch_count();
      record_event(began_, stream());
      for (const auto& launch : exe.launches) launch(context_);
      record_event(ended_, stream());
      exe.kernels = launch_count() - before;
    }
    sleeps_ = exe.host != nullptr;
    if (sleeps_) record_event(done_, stream());
    kernels_ += exe.kernels;
    submit_seconds_ += since(began);
  }
  void wait() override {
    if (!busy_) return;
    use_device(index_);
    finish();
  }

  void time_ops(std::vector<double>* seconds) { seconds_ = seconds; }
  CudaUse use() const { return {device_seconds_, submit_seconds_, copy_seconds_, kernels_}; }

 private:
  Stream stream() const { return context_.launcher.stream; }

  using Clock = std::chrono::steady_clock;
  static Clock::time_point now() { return Clock::now(); }
  static double since(Clock::time_point t) { return std::chrono::duration<double>(now() - t).count(); }

  void finish() {
    busy_ = false;
    const Turns::Turn over = std::exchange(turn_, {});
    if (sleeps_) sleep_until(done_);  // its cores are the host's weights'
    sync(stream());
    host_.rethrow();
    if (exchange_) check_shares(*exchange_);
    device_seconds_ += seconds_between(began_, ended_);
  }

  static void check_shares(const Exchange& exchange) {
    const uint32_t error = static_cast<const Links&>(*exchange.links).error();
    if (error == 1) throw OtherPart("another device has failed");
    if (error)
      throw DeviceError("a device has waited too long for what another one computes",
                        "see nvidia-smi for their states; --peer host if the link between them is at fault");
  }

  void copy_rows(std::byte* to, int64_t pitch, const std::byte* from, int64_t from_pitch, int64_t bytes,
                 int32_t rows) {
    if (rows == 1 || (from_pitch == bytes && pitch == bytes))
      copy_async(to, from, static_cast<size_t>(bytes * rows), stream());
    else
      copy_rows_async(to, static_cast<size_t>(pitch), from, static_cast<size_t>(from_pitch),
                      static_cast<size_t>(bytes), static_cast<size_t>(rows), stream());
  }
  // What is mapped at [from, from + n), where the device reads it: staged_->used() behind that. null: as it
  // is.
  const std::byte* staged(const std::byte* from, int64_t n) {
    return staged_ && n <= Staged::kBytes ? staged_->take(from, n) : nullptr;
  }
  // Rows of a weight as the file has them. True: all of them have been read.
  bool copy_slice(std::byte* to, int64_t pitch, const std::byte* from, int64_t from_pitch, int64_t bytes,
                  int32_t rows) {
    const auto most = static_cast<int32_t>(std::clamp<int64_t>(Staged::kBytes / from_pitch, 1, rows));
    for (int32_t r = 0; r < rows; r += most) {
      const int32_t n = std::min(most, rows - r);
      const std::byte* there = staged(from + r * from_pitch, from_pitch * (n - 1) + bytes);
      if (!there) {
        copy_rows(to + r * pitch, pitch, from + r * from_pitch, from_pitch, bytes, rows - r);
        return false;
      }
      copy_rows(to + r * pitch, pitch, there, from_pitch, bytes, n);
      staged_->used();
    }
    return true;
  }
  // Some groups at a time, through a buffer. True: as copy_slice().
  bool pack_slice(const Tensor& t, int32_t slice, const std::byte* from, int64_t from_pitch) {
    const int64_t kStaging = staged_ ? Staged::kBytes : 64 << 20;
    const int64_t pitch = row_bytes(t.type, t.cols);
    const auto most = static_cast<int32_t>(std::clamp<int64_t>(kStaging / (pitch * kGroup), 1, 1 << 15));
    bool read = true;
    for (int32_t g = 0; g < groups_of(t.rows); g += most) {
      const int32_t groups = std::min(most, groups_of(t.rows) - g), row = g * kGroup,
                    rows = std::min(groups * kGroup, t.rows - row);
      if (const std::byte* there = staged(from + row * from_pitch, from_pitch * (rows - 1) + pitch)) {
        pack_rows(context_.launcher, t, slice, there, from_pitch, g, groups);
        staged_->used();
        continue;
      }
      read = false;
      if (static_cast<int64_t>(staging_.size()) < pitch * rows) {
        sync(stream());
        staging_ = Memory();
        staging_ = Memory(static_cast<size_t>(std::max(pitch * rows, std::min(kStaging, pitch * t.rows))));
      }
      copy_rows(staging_.data(), pitch, from + row * from_pitch, from_pitch, pitch, rows);
      pack_rows(context_.launcher, t, slice, staging_.data(), pitch, g, groups);
    }
    return read;
  }

  void launch_timed(const CudaExecutable& exe) {
    Context alone = context_;
    alone.unpackings = image_.unpackings;
    alone.launcher.overlap = false;
    alone.launcher.beside = nullptr;
    std::vector<Event> events;
    for (const auto& launch : exe.launches) {
      events.push_back(make_event());
      record_event(events.back(), stream());
      launch(alone);
    }
    events.push_back(make_event());
    record_event(events.back(), stream());
    sync(stream());
    host_.rethrow();
    if (!exe.record.empty())
      seconds_->resize(std::max(seconds_->size(), static_cast<size_t>(exe.record.back()) + 1));
    for (size_t i = 0; i < exe.launches.size(); ++i)
      (*seconds_)[static_cast<size_t>(exe.record[i])] += seconds_between(events[i], events[i + 1]);
    for (const Event e : events) destroy_event(e);
  }

  void upload(CudaExecutable& exe) {
    make_image(exe, image_);
    if (exe.arrays.size() < image_.bytes.size())
      exe.arrays = Memory(image_.bytes.size() + image_.bytes.size() / 2 + 4096);
    if (static_cast<int64_t>(partial_.size()) < image_.partial * 4) {
      partial_ = Memory();
      partial_ = Memory(static_cast<size_t>(image_.partial) * 5);
    }
    point_into(image_, exe.arrays.data());
    const auto processors = static_cast<size_t>(device_.sms);
    const size_t handed = processors * (kBandRows / 16) * kHanded,
                 begun = exe.begun ? processors * kBegunTile : 0,
                 words = handed + begun + static_cast<size_t>(exe.left);
    if (zeros_.size() < words * 4) {
      zeros_ = Memory();
      zeros_ = Memory(words * 4);
      zero_async(zeros_.data(), zeros_.size(), stream());
    }
    const size_t choices = static_cast<size_t>(exe.mixtures) * kChoiceWords * 4;
    if (chosen_.size() < choices) {
      chosen_ = Memory();
      chosen_ = Memory(choices);
      zero_async(chosen_.data(), choices, stream());
    }
    image_.step.chosen = reinterpret_cast<uint32_t*>(chosen_.data());
    image_.step.number = ++steps_;
    image_.step.share = exe.exchange ? exe.exchange->step() * kMostShares : 0;
    image_.step.partial = reinterpret_cast<float*>(partial_.data());
    image_.step.handed = reinterpret_cast<uint32_t*>(zeros_.data());
    image_.step.begun = image_.step.handed + handed;
    image_.step.left = image_.step.begun + begun;
    const size_t bytes = sizeof(DevStep) + image_.bytes.size();
    if (!pinned_ || pinned_->size() < bytes) pinned_ = std::make_unique<Pinned>(bytes + bytes / 2);
    std::byte* pinned = pinned_->data();
    std::memcpy(pinned, &image_.step, sizeof(DevStep));
    std::memcpy(pinned + sizeof(DevStep), image_.bytes.data(), image_.bytes.size());
    copy_async(exe.step.data(), pinned, sizeof(DevStep), stream());
    if (!image_.bytes.empty())
      copy_async(exe.arrays.data(), pinned + sizeof(DevStep), image_.bytes.size(), stream());
  }

  // Rows that lie side by side on both sides, as a picture's do, go as one.
  void place_soft_rows(const CudaExecutable& exe) {
    const StepState& s = *exe.state;
    for (const CudaExecutable::Embedded& e : exe.embedded) {
      const int32_t rows = e.rows == RowSet::all ? s.n_rows : s.n_out;
      const auto row = [&](int32_t i) { return s.soft[e.rows == RowSet::all ? i : s.out_row[i]]; };
      const auto width = static_cast<size_t>(e.y.cols) * 4;
      for (int32_t first = 0, end; first < rows; first = end) {
        end = first + 1;
        const float* from = row(first);
        if (!from) continue;
        while (end < rows && e.y.pitch == static_cast<int64_t>(width) &&
               row(end) == from + int64_t{end - first} * e.y.cols)
          ++end;
        copy_async(e.y.data + first * e.y.pitch, from, width * static_cast<size_t>(end - first), stream());
      }
    }
  }

  // From a program's second run on: the first loads its kernels, and a step that never comes again needs no
  // graph. Where graphs cannot be had, launches go one by one.
  void record(CudaExecutable& exe) {
    if (exe.graph) destroy_graph(std::exchange(exe.graph, nullptr));
    for (int i = 0; i < kMaxSpans; ++i) exe.unpackings[i] = std::max(exe.unpackings[i], image_.unpackings[i]);
    context_.unpackings = exe.unpackings;
    try {
      if (!begin_capture(stream())) return;
      record_event_in_graph(began_, stream());
      for (const auto& launch : exe.launches) launch(context_);
      record_event_in_graph(ended_, stream());
      exe.graph = end_capture(stream());
    } catch (const Error& e) {
      log_warn("steps run without graphs: {}", e.what());
      graphs_ = false;
      abandon_capture(stream());
    }
  }

  int index_;
  bool guest_;
  std::shared_ptr<Turns> turns_;
  Turns::Turn turn_;  // while what was submitted is not known to have ended
  DeviceProps device_;
  HostPart host_;
  double memory_;
  int64_t memory_limit_;
  std::string meminfo_;
  bool graphs_;
  Event began_ = nullptr, ended_ = nullptr;  // of the step's work
  Event done_ = nullptr;                     // behind all of it
  Context context_;
  Memory tables_, partial_, staging_;
  std::unique_ptr<Staged> staged_;  // while weights come to a device that shares the host's memory
  Memory zeros_;                    // DevStep's handed, begun and left
  Memory chosen_;
  uint32_t steps_ = 0;
  std::shared_ptr<Memory> scratch_;
  StepImage image_;
  std::unique_ptr<Pinned> pinned_;
  std::vector<double>* seconds_ = nullptr;
  Exchange* exchange_ = nullptr;  // of the step that runs
  bool busy_ = false, sleeps_ = false;
  std::atomic<double> device_seconds_ = 0, submit_seconds_ = 0, copy_seconds_ = 0;  // as CudaUse says
  std::atomic<int64_t> kernels_ = 0;
};

}  // namespace
}  // namespace cuda

std::vector<std::string> cuda_devices(std::string* why) {
  std::vector<std::string> out;
  for (const cuda::DeviceProps& d : cuda::device_list(why))
    out.push_back(
        fmt::format("{}, compute capability {}.{}, {} MiB", d.name, d.major, d.minor, d.mem_total >> 20));
  return out;
}

void time_cuda_ops(Backend& backend, std::vector<double>* seconds) {
  if (auto* b = dynamic_cast<cuda::CudaBackend*>(&backend)) b->time_ops(seconds);
}

CudaUse cuda_use(Backend& backend) {
  const auto* b = dynamic_cast<cuda::CudaBackend*>(&backend);
  return b ? b->use() : CudaUse{};
}

std::unique_ptr<Backend> make_cuda_guest(Backend& host) {
  const auto* b = dynamic_cast<cuda::CudaBackend*>(&host);
  return b ? b->guest() : nullptr;
}

std::unique_ptr<Backend> make_cuda_backend(int device, const CudaOptions& options) {
  std::string why;
  const std::vector<cuda::DeviceProps> devices = cuda::device_list(&why);
  if (devices.empty()) throw Error("no CUDA device can be used: " + why, "use --device cpu");
  if (device < 0 || static_cast<size_t>(device) >= devices.size())
    throw Error(fmt::format("there is no CUDA device {}", device),
                fmt::format("devices here: cuda:0 to cuda:{}", devices.size() - 1));
  cuda::DeviceProps d = devices[static_cast<size_t>(device)];
  if (d.major < 8)
    throw Error(fmt::format("{} has compute capability {}.{}", d.name, d.major, d.minor),
                "8.0 (Ampere) is the least; use --device cpu");
  if (const int32_t g = cuda::forced().generation; g > 80) d.major = g / 10, d.minor = g % 10;
  if (const int64_t shared = int64_t{cuda::forced().shared} << 10; shared > 0)
    d.shared_per_block = std::min(d.shared_per_block, shared);
  d.integrated = d.integrated || cuda::forced().unified;
  return std::make_unique<cuda::CudaBackend>(device, d, options);
}

}  // namespace carat
