// Eyes: a tower turns a picture into rows that stand in the places of tokens (StepState::soft). It is a
// Program like a model's, without a cache: all patches of one picture are a step.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "media/picture.h"
#include "model/model.h"

namespace carat {

class VisionTower {
 public:
  virtual ~VisionTower() = default;
  // `cell` pixels a side become a row: a picture's sides are multiples of it. group: patches of a row.
  struct Shape {
    int32_t dim = 0, cell = 0, group = 0, most_cells = 0;  // the last: of a side
    int32_t token = -1;     // that stands in a prompt where a row belongs; -1: the vocabulary's `mark`
    std::string_view mark;  // its text
    std::string_view open = {}, close = {};  // tokens around a picture that no template writes
    // What templates write for a video, once; for each frame stands its time and a picture of these tokens.
    struct Frames {
      std::string_view mark, token, open, close;
      bool clock = false;  // times as "01:05 ", and a space between frames; else "<65.0 seconds>"
    } frames = {};
  };
  const Shape& shape() const { return shape_; }
  // The size in which the tower takes a picture, for a budget of rows; 0: the model's usual one.
  virtual GridSize size(const Picture& picture, int32_t budget = 0) const = 0;

  // What a picture is to the program: f32 [patches, values of one], and what each adds for its place, in the
  // order in which `group` patches after the other become a row.
  struct Input {
    std::vector<float> pixels, positions;
    std::vector<int32_t> place;  // StepState::place
  };
  // Whatever `in` held before; memory that it has is used again.
  virtual void prepare(const Picture& picture, Input& in) const = 0;
  struct Io {
    Tensor pixels, positions;       // filled by the caller
    Tensor rows;                    // f32 [patches / group, dim]
    std::vector<Tensor> taps = {};  // if asked for: embedded patches, each layer's, the tower's last
  };
  virtual Io build(Program& program, Arena& arena, int32_t patches, bool taps) const = 0;

 protected:
  Shape shape_;
};

// Writes the pixels of the patch in column x and row y, a channel after the other, as `value` has a byte's;
// returns what is behind them.
float* patch_pixels(const Picture& p, int32_t x, int32_t y, int32_t patch,
                    const std::array<float, 256>& value, float* to);

// The eyes of such files for a model; Error if they are another model's.
std::shared_ptr<const VisionTower> load_vision(std::shared_ptr<const WeightSource> towers, const Model& model,
                                               Backend& backend, const Progress& progress = {});

// Runs a tower, a picture at a time, a program per bucket of patches. One thread.
class Encoder {
 public:
  Encoder(std::shared_ptr<Backend> backend, std::shared_ptr<const VisionTower> tower, bool taps = false);
  ~Encoder();
  // Compiles the program for pictures of so many rows, and allocates its scratch, ahead of its first use.
  void prepare(int32_t rows);
  // f32 [rows, dim] of a picture in the tower's size. Error if its sides are not.
  std::vector<float> encode(const Picture& picture);
  int32_t rows_of(const Picture& picture) const;
  const VisionTower& tower() const { return *tower_; }
  // Of the last picture: what a tap holds, if they were asked for.
  std::vector<float> tap(size_t i) const;
  size_t taps() const;
  // Of the last picture, too: what ran, whole, and the state that it ran with (for profiles).
  const Program& program() const;
  const StepState& state() const { return state_; }
  int64_t memory_bytes() const { return arena_.bytes(); }

 private:
  struct Bucket;
  Bucket& bucket(int32_t rows);

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const VisionTower> tower_;
  bool taps_;
  Arena arena_;
  std::vector<int32_t> pos_, zero_, until_, out_row_;
  int32_t page_ = 0;
  SeqView view_;
  StepState state_;
  std::map<int32_t, std::unique_ptr<Bucket>> buckets_;
  VisionTower::Input input_;  // of the last picture
  Bucket* last_ = nullptr;
};

}  // namespace carat
