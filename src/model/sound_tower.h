// Ears: a tower turns sound into rows that stand in the places of tokens (StepState::soft). It is two
// Programs without a cache: one makes a row of every 40 ms, the other runs over those rows; all rows of one
// piece of sound are a step.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "media/sound.h"
#include "model/model.h"

namespace carat {

class SoundTower {
 public:
  virtual ~SoundTower() = default;
  struct Shape {
    int32_t dim = 0;
    double seconds = 0;     // of a piece of sound, at most
    int32_t token = -1;     // that stands in a prompt where a row belongs; -1: the vocabulary's `mark`
    std::string_view mark;  // its text
    std::string_view open = {}, close = {};  // tokens around a piece that no template writes
  };
  const Shape& shape() const { return shape_; }
  virtual int32_t rows(size_t samples) const = 0;  // 0: too short

  // What a piece is to the first program: f32 [points, values of one], and how many of its rows there are
  // before and after it halves the frequencies and times once more.
  struct Input {
    std::vector<float> values;
    int32_t points = 0, halved = 0, rows = 0;
  };
  virtual Input prepare(std::span<const float> samples) const = 0;
  struct Io {
    Tensor values;                  // filled by the caller
    Tensor rows;                    // f32 [rows, dim]
    std::vector<Tensor> taps = {};  // if asked for: what the first program makes, each layer's, the last's
  };
  // For pieces of at most `rows` rows.
  virtual Io build(Program& first, Program& second, Arena& arena, int32_t rows, bool taps) const = 0;

 protected:
  Shape shape_;
};

// Whether such files hold ears, of whatever model.
bool holds_ears(const WeightSource& towers);
// The ears of such files for a model; Error if they are another model's.
std::shared_ptr<const SoundTower> load_ears(std::shared_ptr<const WeightSource> towers, const Model& model,
                                            Backend& backend, const Progress& progress = {});

// Runs a tower, a piece at a time, two programs per bucket of rows. One thread.
class SoundEncoder {
 public:
  SoundEncoder(std::shared_ptr<Backend> backend, std::shared_ptr<const SoundTower> tower, bool taps = false);
  ~SoundEncoder();
  // Compiles the programs for the longest piece, and allocates their scratch, ahead of their first use.
  void prepare();
  // f32 [rows, dim] of samples of kSoundRate. Error if they are too few or too many.
  std::vector<float> encode(std::span<const float> samples);
  const SoundTower& tower() const { return *tower_; }
  // Of the last piece: what a tap holds, if they were asked for.
  std::vector<float> tap(size_t i) const;
  size_t taps() const;
  int64_t memory_bytes() const { return arena_.bytes(); }

 private:
  struct Bucket;
  Bucket& bucket(int32_t rows);
  void run(Executable& program, int32_t rows, int32_t out);

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const SoundTower> tower_;
  bool taps_;
  Arena arena_;
  std::vector<int32_t> pos_, zero_;
  int32_t page_ = 0;
  SeqView view_{};
  StepState state_;
  std::map<int32_t, std::unique_ptr<Bucket>> buckets_;
  Bucket* last_ = nullptr;
  int32_t last_rows_ = 0;
};

}  // namespace carat
