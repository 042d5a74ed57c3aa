// Qwen3.6's specification: a refusal names the rule that a file breaks, and the key.
#include <doctest/doctest.h>

#include "base/error.h"
#include "model/families/qwen36_net.h"

using namespace carat;

namespace {

class Edited : public WeightSource {
 public:
  Edited() : from_(open_source(std::string(CARAT_TEST_DATA) + "/goldens/qwen3_5")) {
    path_ = from_->path(), format_ = "edited", meta_ = from_->meta();
    tensors_.assign(from_->tensors().begin(), from_->tensors().end());
    index();
  }
  void set(const std::string& key, int64_t v) {
    meta_.set(meta_.get_string("general.architecture") + ".ssm." + key, v);
  }

 private:
  std::unique_ptr<WeightSource> from_;
};

std::string refusal(std::initializer_list<std::pair<const char*, int64_t>> values) {
  Edited source;
  for (const auto& [key, v] : values) source.set(key, v);
  try {
    qwen36::read_spec(source);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
bool names(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("recurrent states: the refusal names the true rule") {
  CHECK(refusal({}) == "");
  // The product of heads and size is right, the size is not.
  const std::string size = refusal({{"state_size", 24}, {"time_step_rank", 6}, {"inner_size", 144}});
  CHECK_MESSAGE(names(size, "ssm.state_size' is 24"), size);
  CHECK_MESSAGE(names(size, "multiple of 16"), size);
  const std::string shares = refusal({{"time_step_rank", 3}, {"inner_size", 48}});
  CHECK_MESSAGE(names(shares, "3 value heads do not share 2 key heads evenly"), shares);
  const std::string inner = refusal({{"inner_size", 48}});
  CHECK_MESSAGE(names(inner, "4 value heads of 16 do not make"), inner);
}
