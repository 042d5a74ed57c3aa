#include "model/files/hf_rope.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/error.h"

namespace carat {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const Json& rope, std::string_view file) : rope_(rope), file_(file) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(
        fmt::format("'{}' has {}", file_, what),
        "positions can be encoded as 'default', 'linear' or 'yarn'; flags replace what the file says: "
        "--rope-scaling none");
  }
  const Json* find(const char* key) const {
    const auto it = rope_.find(key);
    return it == rope_.end() || it->is_null() ? nullptr : &*it;
  }
  std::string type() const {
    const Json* t = find("rope_type");
    if (!t) t = find("type");
    if (!t) return "default";
    if (!t->is_string()) fail("a rope type that is not text");
    return t->get<std::string>();
  }
  std::optional<double> number(const char* key) const {
    const Json* v = find(key);
    if (!v) return std::nullopt;
    if (!v->is_number() || !(v->get<double>() > 0) || v->get<double>() > 1e12)
      fail(fmt::format("a '{}' that is not a positive number", key));
    return v->get<double>();
  }

 private:
  const Json& rope_;
  std::string_view file_;
};

double grown(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; }

}  // namespace

void read_hf_rope_scaling(const Json& rope, std::string_view arch, std::string_view file, Metadata& meta) {
  const Reader r(rope, file);
  const std::string type = r.type();
  if (type == "default") return;
  if (type != "linear" && type != "yarn") r.fail(fmt::format("the rope type '{}', which is not known", type));
  const std::optional<double> factor = r.number("factor");
  if (!factor) r.fail(fmt::format("the rope type '{}' without a 'factor'", type));
  const auto set = [&](const char* key, MetaValue v) {
    meta.set(fmt::format("{}.rope.scaling.{}", arch, key), std::move(v));
  };
  set("type", type);
  set("factor", *factor);
  if (type == "linear") return;
  if (const auto trained = r.number("original_max_position_embeddings"))
    set("original_context_length", static_cast<int64_t>(*trained));
  if (const auto fast = r.number("beta_fast")) set("yarn_beta_fast", *fast);
  if (const auto slow = r.number("beta_slow")) set("yarn_beta_slow", *slow);
  // The whole factor there, what it is beside YaRN's own here.
  std::optional<double> attention = r.number("attention_factor");
  const std::optional<double> scale = r.number("mscale"), all = r.number("mscale_all_dim");
  if (!attention && scale && all) attention = grown(*factor, *scale) / grown(*factor, *all);
  if (attention) set("attn_factor", *attention / grown(*factor, 1));
  if (const Json* cut = r.find("truncate"); cut && *cut != true)
    r.fail("a YaRN ramp that is not cut to whole pairs ('truncate'), which is not known");
}

}  // namespace carat
