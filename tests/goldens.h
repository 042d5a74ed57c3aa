// The golden models and what the reference implementation computed with them (tests/data/goldens).
#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "model/files/safetensors.h"
#include "model/model.h"

namespace carat::test {

inline std::string golden_dir(const std::string& name) {
  return std::string(CARAT_TEST_DATA) + "/goldens/" + name;
}

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> f;
  std::vector<int32_t> i;
  std::vector<uint8_t> u8;
  double max_abs() const {
    double m = 0;
    for (const float v : f) m = std::max(m, std::abs(double{v}));
    return m;
  }
};

class Goldens {
 public:
  explicit Goldens(const std::string& name, const std::string& file = "goldens.safetensors")
      : file_(golden_dir(name) + "/" + file), tensors_(parse_safetensors(file_.bytes(), name)) {}
  bool has(const std::string& name) const { return find(name) != nullptr; }
  GoldenTensor get(const std::string& name) const {
    const SafeTensor* t = find(name);
    CARAT_CHECK(t, "{}", name);
    GoldenTensor g;
    g.shape = t->shape;
    if (t->dtype == "F32") {
      g.f.resize(t->bytes / 4);
      std::memcpy(g.f.data(), t->data, t->bytes);
    } else if (t->dtype == "U8") {
      const auto* p = reinterpret_cast<const uint8_t*>(t->data);
      g.u8.assign(p, p + t->bytes);
    } else {
      CARAT_CHECK(t->dtype == "I32", "{}", t->dtype);
      g.i.resize(t->bytes / 4);
      std::memcpy(g.i.data(), t->data, t->bytes);
    }
    return g;
  }

 private:
  const SafeTensor* find(const std::string& name) const {
    for (const SafeTensor& t : tensors_)
      if (t.name == name) return &t;
    return nullptr;
  }
  MappedFile file_;
  std::vector<SafeTensor> tensors_;
};

// A directory with the golden's weights and one of its two config files, removed at the end.
class GoldenCopy {
 public:
  GoldenCopy(const std::string& name, const std::string& config) {
    namespace fs = std::filesystem;
    char path[] = "/tmp/carat-golden-XXXXXX";
    CARAT_CHECK(mkdtemp(path), "{}", path);
    path_ = path;
    fs::copy_file(golden_dir(name) + "/" + config, path_ + "/config.json");
    fs::create_symlink(fs::absolute(golden_dir(name) + "/model.safetensors"), path_ + "/model.safetensors");
  }
  GoldenCopy(const GoldenCopy&) = delete;
  GoldenCopy& operator=(const GoldenCopy&) = delete;
  ~GoldenCopy() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Model load_golden(const std::string& path, Backend& backend) {
  return load_model(std::shared_ptr<WeightSource>(open_source(path)), backend);
}

}  // namespace carat::test
