// Which type each tensor of a quantized file gets: the recipes of popular files (docs/formats.md section 8).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace carat {

struct Recipe {
  std::string_view name;  // "q4_k_m"
  DType base;
  int file_type;  // general.file_type
};
const Recipe* find_recipe(std::string_view name);  // case does not matter; nullptr if there is none
// "f32 f16 ...": those that values can be written in, and all, which forge fills with random codes.
std::string recipe_names();
std::string all_recipe_names();

// What a recipe needs to know about the model.
struct MixModel {
  int layers = 0;
  int values = 0;       // number of attn_v tensors
  int query_group = 1;  // query heads per KV head
  bool has_output = false, has_imatrix = false;
};

// Hands out types in file order (it counts the attn_v tensors as they pass).
class TypeMix {
 public:
  TypeMix(const Recipe& recipe, const MixModel& model) : recipe_(recipe), model_(model) {}
  // nullopt: the tensor keeps the type that it has (never quantized).
  std::optional<DType> type_of(std::string_view name, const std::vector<int64_t>& shape);

 private:
  DType wanted(std::string_view name, bool experts);
  bool more(int i, int n) const { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }
  const Recipe& recipe_;
  MixModel model_;
  int value_index_ = 0;
};

// The type that takes the place of one whose blocks do not fit the rows.
DType fitting_type(DType type, int64_t cols);
// N of "blk.N.", or -1.
int layer_of(std::string_view tensor_name);

}  // namespace carat
