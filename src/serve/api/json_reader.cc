#include "serve/api/json_reader.h"

#include <exception>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace carat {
namespace {

constexpr size_t kFew = 8;  // keys, up to which looking through them is faster than a table

using Members = std::vector<std::pair<const std::string, Json>>;

class Builder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& k) override {
    keys_.back() = std::move(k);
    return true;
  }
  bool start_object(std::size_t) override {
    open_.push_back(Json::object());
    keys_.emplace_back();
    return true;
  }
  bool start_array(std::size_t) override {
    open_.push_back(Json::array());
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    Json done = close();
    merge(done.get_ref<Json::object_t&>());
    return put(std::move(done));
  }
  bool end_array() override { return put(close()); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    // By its own type, so that it may be caught as what it is.
    if (const auto* error = dynamic_cast<const nlohmann::detail::parse_error*>(&e)) throw *error;
    if (const auto* error = dynamic_cast<const nlohmann::detail::out_of_range*>(&e)) throw *error;
    throw std::runtime_error(e.what());
  }

 private:
  Json close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return done;
  }
  template <class V>
  bool put(V&& v) {
    if (open_.empty()) {
      root_ = std::forward<V>(v);
    } else if (open_.back().is_array()) {
      open_.back().get_ref<Json::array_t&>().emplace_back(std::forward<V>(v));
    } else {
      // The vector below the ordered map: no search for the key.
      static_cast<Members&>(open_.back().get_ref<Json::object_t&>())
          .emplace_back(std::move(keys_.back()), std::forward<V>(v));
    }
    return true;
  }
  static void merge(Members& members) {
    if (!has_twins(members)) return;
    std::unordered_map<std::string_view, size_t> place;
    Members out;
    out.reserve(members.size());
    for (auto& [name, value] : members) {
      const auto [it, fresh] = place.emplace(name, out.size());
      if (fresh)
        out.emplace_back(name, std::move(value));
      else
        out[it->second].second = std::move(value);
    }
    members.swap(out);
  }
  static bool has_twins(const Members& members) {
    if (members.size() <= kFew) {
      for (size_t i = 0; i < members.size(); ++i)
        for (size_t k = 0; k < i; ++k)
          if (members[i].first == members[k].first) return true;
      return false;
    }
    std::unordered_map<std::string_view, bool> seen;
    seen.reserve(members.size());
    for (const auto& [name, value] : members)
      if (!seen.emplace(name, true).second) return true;
    return false;
  }

  Json root_;
  std::vector<Json> open_;
  std::vector<std::string> keys_;  // of the value that comes, per open object
};

}  // namespace

Json read_json(std::string_view text) {
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace carat
