#include "model/sound_tower.h"

#include <numeric>

#include "base/error.h"

namespace carat {
namespace {

constexpr int32_t kLeastRows = 50;  // of a bucket: two seconds

int32_t bucket_rows(int32_t n) {
  int32_t rows = kLeastRows;
  while (rows < n) rows *= 2;
  return rows;
}

}  // namespace

struct SoundEncoder::Bucket {
  Program first, second;
  SoundTower::Io io;
  std::unique_ptr<Executable> run_first, run_second;
};

bool holds_ears(const WeightSource& towers) {
  return towers.meta().get_bool_or("clip.has_audio_encoder", false);
}

std::shared_ptr<const SoundTower> load_ears(std::shared_ptr<const WeightSource> towers, const Model& model,
                                            Backend& backend, const Progress& progress) {
  const std::string path = towers->path();
  if (!model.family->sound)
    throw Error(fmt::format("models of the architecture '{}' have no ears", model.spec.arch),
                "of Gemma 4, E2B and E4B hear");
  if (!holds_ears(*towers))
    throw Error(fmt::format("'{}' holds no tower for sound", path), "of Gemma 4, E2B and E4B hear");
  std::shared_ptr<const SoundTower> tower = model.family->sound(std::move(towers), backend, progress);
  if (tower->shape().dim != model.spec.dim)
    throw Error(fmt::format("the tower of '{}' makes rows of {}, but the model '{}' is {} wide", path,
                            tower->shape().dim, model.spec.name, model.spec.dim),
                "a tower belongs to one model: give the one that was published with it");
  return tower;
}

SoundEncoder::SoundEncoder(std::shared_ptr<Backend> backend, std::shared_ptr<const SoundTower> tower,
                           bool taps)
    : backend_(std::move(backend)), tower_(std::move(tower)), taps_(taps), arena_(*backend_) {
  view_.pages = &page_;
}
SoundEncoder::~SoundEncoder() { backend_->wait(); }

SoundEncoder::Bucket& SoundEncoder::bucket(int32_t rows) {
  std::unique_ptr<Bucket>& b = buckets_[rows];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    made->io = tower_->build(made->first, made->second, arena_, rows, taps_);
    made->run_first = backend_->compile(made->first, &state_);
    made->run_second = backend_->compile(made->second, &state_);
    b = std::move(made);
  }
  return *b;
}

void SoundEncoder::prepare() {
  bucket(bucket_rows(tower_->rows(static_cast<size_t>(tower_->shape().seconds * kSoundRate))));
}

void SoundEncoder::run(Executable& program, int32_t rows, int32_t out) {
  if (pos_.size() < static_cast<size_t>(rows)) {
    pos_.resize(static_cast<size_t>(rows));
    std::iota(pos_.begin(), pos_.end(), 0);
    zero_.assign(pos_.size(), 0);
  }
  state_ = {rows, out, zero_.data(), pos_.data(), zero_.data(), pos_.data(), &view_};
  backend_->submit(program);
  backend_->wait();
}

std::vector<float> SoundEncoder::encode(std::span<const float> samples) {
  const double most = tower_->shape().seconds;
  if (static_cast<double>(samples.size()) > most * kSoundRate)
    throw Error(fmt::format("a piece of {:.1f} s of sound, the tower takes {:.0f}",
                            static_cast<double>(samples.size()) / kSoundRate, most),
                "split_sound() cuts it");
  const SoundTower::Input input = tower_->prepare(samples);
  Bucket& b = bucket(bucket_rows(input.rows));
  backend_->copy(b.io.values.data, input.values.data(), input.values.size() * 4);
  run(*b.run_first, input.points, input.halved);
  run(*b.run_second, input.rows, input.rows);
  last_ = &b, last_rows_ = input.rows;
  std::vector<float> out(static_cast<size_t>(input.rows) * b.io.rows.cols);
  backend_->copy(out.data(), b.io.rows.data, out.size() * 4);
  return out;
}

size_t SoundEncoder::taps() const { return last_->io.taps.size(); }

std::vector<float> SoundEncoder::tap(size_t i) const {
  const Tensor& t = last_->io.taps.at(i);
  std::vector<float> out(static_cast<size_t>(last_rows_) * t.cols);
  backend_->copy(out.data(), t.data, out.size() * 4);
  return out;
}

}  // namespace carat
