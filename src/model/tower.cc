#include "model/open_tower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "model/pieces.h"

namespace carat {
namespace {

constexpr int32_t kLeastRows = 70;  // of a bucket: the smallest budget for a picture

// The kinds of towers in files, and an architecture that has them.
constexpr std::pair<std::string_view, std::string_view> kKinds[] = {{"gemma4v", "gemma4"},
                                                                    {"qwen3vl_merger", "qwen35"}};

}  // namespace

int32_t encoder_rows(int32_t n) {
  int32_t rows = kLeastRows;
  while (rows < n) rows *= 2;
  return rows;
}

struct Encoder::Bucket {
  Program program;
  VisionTower::Io io;
  std::vector<std::unique_ptr<Executable>> pieces;
};

float* patch_pixels(const Picture& p, int32_t x, int32_t y, int32_t patch,
                    const std::array<float, 256>& value, float* to) {
  for (size_t c = 0; c < 3; ++c)
    for (int32_t row = y * patch; row < (y + 1) * patch; ++row) {
      const uint8_t* from = p.rgb.data() + (static_cast<size_t>(row) * p.width + x * patch) * 3 + c;
      for (int32_t i = 0; i < patch; ++i) *to++ = value[from[3 * i]];
    }
  return to;
}

std::shared_ptr<const VisionTower> load_vision(std::shared_ptr<const WeightSource> towers, const Model& model,
                                               Backend& backend, const Progress& progress) {
  if (!model.family->vision)
    throw Error(fmt::format("models of the architecture '{}' are not given eyes yet", model.spec.arch),
                "leave the tower's file away: text works without it");
  const std::string path = towers->path();
  std::shared_ptr<const VisionTower> tower = model.family->vision(std::move(towers), backend, progress);
  if (tower->shape().dim != model.spec.dim)
    throw Error(fmt::format("the tower of '{}' makes rows of {}, but the model '{}' is {} wide", path,
                            tower->shape().dim, model.spec.name, model.spec.dim),
                "a tower belongs to one model: give the one that was published with it");
  return tower;
}

std::shared_ptr<const VisionTower> open_vision(std::shared_ptr<const WeightSource> towers, Backend& backend) {
  const Metadata& m = towers->meta();
  const std::string kind =
      m.get_string_or("clip.vision.projector_type", m.get_string_or("clip.projector_type", ""));
  for (const auto& [known, arch] : kKinds)
    if (kind == known) return find_family(arch).vision(std::move(towers), backend, {});
  throw Error(fmt::format("'{}' holds the tower '{}', which is not known", towers->path(), kind),
              "towers of Gemma 4 and Qwen3.6 are");
}

Encoder::Encoder(std::shared_ptr<Backend> backend, std::shared_ptr<const VisionTower> tower, bool taps)
    : backend_(std::move(backend)), tower_(std::move(tower)), taps_(taps), arena_(*backend_) {
  view_.pages = &page_;
}
Encoder::~Encoder() { backend_->wait(); }

Encoder::Bucket& Encoder::bucket(int32_t rows) {
  std::unique_ptr<Bucket>& b = buckets_[rows];
  if (!b) {
    auto made = std::make_unique<Bucket>();
    arena_.reset();
    made->io = tower_->build(made->program, arena_, rows * tower_->shape().group, taps_);
    made->pieces = compile_pieces(*backend_, made->program, &state_);
    b = std::move(made);
  }
  return *b;
}

void Encoder::prepare(int32_t rows) { bucket(encoder_rows(rows)); }

int32_t Encoder::rows_of(const Picture& p) const {
  const VisionTower::Shape& s = tower_->shape();
  const auto fits = [&](int32_t side) {
    return side > 0 && side % s.cell == 0 && side / s.cell <= s.most_cells;
  };
  if (!fits(p.width) || !fits(p.height) || p.rgb.size() != size_t{3} * p.width * p.height)
    throw Error(fmt::format("a picture of {} x {} pixels is not what the tower takes", p.width, p.height),
                fmt::format("sides are multiples of {} up to {}", s.cell, s.cell * s.most_cells));
  return p.width / s.cell * (p.height / s.cell);
}

std::vector<float> Encoder::encode(const Picture& picture) {
  const int32_t rows = rows_of(picture), patches = rows * tower_->shape().group;
  Bucket& b = bucket(encoder_rows(rows));
  tower_->prepare(picture, input_);
  backend_->copy(b.io.pixels.data, input_.pixels.data(), input_.pixels.size() * 4);
  backend_->copy(b.io.positions.data, input_.positions.data(), input_.positions.size() * 4);
  pos_.resize(static_cast<size_t>(patches));
  std::iota(pos_.begin(), pos_.end(), 0);
  zero_.assign(pos_.size(), 0);
  until_.assign(pos_.size(), patches - 1);
  out_row_.assign(pos_.begin(), pos_.begin() + rows);
  state_ = {patches, rows, zero_.data(), pos_.data(), zero_.data(), out_row_.data(), &view_};
  state_.until = until_.data(), state_.place = input_.place.data();
  last_ = &b;
  for (const auto& piece : b.pieces) backend_->submit(*piece);
  backend_->wait();
  std::vector<float> out(static_cast<size_t>(rows) * b.io.rows.cols);
  backend_->copy(out.data(), b.io.rows.data, out.size() * 4);
  return out;
}

const Program& Encoder::program() const { return last_->program; }
size_t Encoder::taps() const { return last_->io.taps.size(); }

std::vector<float> Encoder::tap(size_t i) const {
  const Tensor& t = last_->io.taps.at(i);
  const int32_t rows = t.rows == last_->io.rows.rows ? state_.n_out : state_.n_rows;
  std::vector<float> out(static_cast<size_t>(rows) * t.cols);
  backend_->copy(out.data(), t.data, out.size() * 4);
  return out;
}

}  // namespace carat
