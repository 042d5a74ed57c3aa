#include "apps/rope_flags.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"

namespace carat {
namespace {

struct YarnFlag {
  const char* flag;
  std::optional<double> RopeFlags::*value;
  const char* key;
  double low, high;
  const char* help;
};
constexpr YarnFlag kYarn[] = {
    {"--yarn-ext-factor", &RopeFlags::extrapolate, "yarn_ext_factor", 0, 1,
     "YaRN: how far pairs that turn fast stay as they are (default 1; 0: all are interpolated)"},
    {"--yarn-attn-factor", &RopeFlags::attention, "yarn_attn_factor", 1e-3, 1e3,
     "YaRN: times what it makes of queries and keys by itself (default 1)"},
    {"--yarn-beta-slow", &RopeFlags::beta_slow, "yarn_beta_slow", 1e-3, 1e6,
     "YaRN: pairs that turn less often over the training are interpolated (default 1)"},
    {"--yarn-beta-fast", &RopeFlags::beta_fast, "yarn_beta_fast", 1e-3, 1e6,
     "YaRN: pairs that turn more often stay as they are (default 32)"},
};

// The factor that flags ask for.
std::optional<double> factor_of(const RopeFlags& f) {
  if (f.scale && f.freq_scale)
    throw Error("--rope-scale and --rope-freq-scale say the same thing twice", "leave one of them out");
  if (f.freq_scale) return 1 / *f.freq_scale;
  return f.scale;
}

// A number in a range, or the one by which llama.cpp writes its default.
CLI::Validator in_range(double low, double high, double none) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double v = 0;
        if (CLI::detail::lexical_cast(text, v) && (v == none || (v >= low && v <= high))) return {};
        return fmt::format("Value {} not in range {:g} - {:g}", text, low, high);
      },
      "");
}

// The first flag of YaRN that is there; null: none.
const char* first_of_yarn(const RopeFlags& f) {
  if (f.trained) return "--yarn-orig-ctx";
  for (const YarnFlag& y : kYarn)
    if (f.*y.value) return y.flag;
  return nullptr;
}

}  // namespace

void add_rope_flags(CLI::App& app, RopeFlags& f) {
  app.add_option("--rope-scaling", f.type,
                 "How positions beyond the training are encoded: none, linear, yarn (default: as the model's "
                 "file says)")
      ->check(CLI::IsMember({"none", "linear", "yarn"}));
  app.add_option("--rope-scale", f.scale, "Stretch the positions of the training over N times as many")
      ->check(CLI::Range(1e-3, 1e6));
  app.add_option("--rope-freq-scale", f.freq_scale, "The same as --rope-scale 1/N")
      ->check(CLI::Range(1e-6, 1e3));
  app.add_option_function<double>(
         "--rope-freq-base",
         [&f](double v) {
           if (v != 0) f.freq_base = v;
         },
         "Base of the frequencies by which positions turn (default: the model's)")
      ->check(in_range(1, 1e12, 0));
  app.add_option_function<int64_t>(
         "--yarn-orig-ctx",
         [&f](int64_t v) {
           if (v != 0) f.trained = v;
         },
         "YaRN: positions that the model was trained for (default: the model's)")
      ->check(CLI::Range(0, 1 << 30));
  for (const YarnFlag& y : kYarn)
    app.add_option_function<double>(
           y.flag,
           [&f, &y](double v) {
             if (v != -1) f.*y.value = v;
           },
           y.help)
        ->check(in_range(y.low, y.high, -1));
}

void apply_rope_flags(const RopeFlags& f, WeightSource& source) {
  const std::string arch = source.meta().get_string_or("general.architecture", "");
  const auto key = [&](const char* name) { return fmt::format("{}.rope.{}", arch, name); };
  if (f.freq_base) source.override_meta(key("freq_base"), *f.freq_base);
  const std::optional<double> factor = factor_of(f);
  const char* yarn = first_of_yarn(f);
  if (f.type == "none" && (factor || yarn))
    throw Error(fmt::format("--rope-scaling none takes no {}", factor ? "--rope-scale" : yarn),
                "leave one of them out");
  const std::string files = source.meta().get_string_or(key("scaling.type"), "none");
  const std::string type = f.type.empty() ? (files == "none" ? "linear" : files) : f.type;
  if (yarn && type != "yarn")
    throw Error(fmt::format("{} counts only with YaRN", yarn),
                "give --rope-scaling yarn --rope-scale N, too");
  if (f.type.empty() && !factor && !yarn) return;
  source.override_meta(key("scaling.type"), type);
  if (type == "none") return;
  if (factor)
    source.override_meta(key("scaling.factor"), *factor);
  else if (!source.meta().find(key("scaling.factor")))
    throw Error(fmt::format("--rope-scaling {} does not say by how much", type),
                "give --rope-scale 4 for four times the positions of the training");
  if (f.trained) source.override_meta(key("scaling.original_context_length"), *f.trained);
  for (const YarnFlag& y : kYarn)
    if (f.*y.value) source.override_meta(key("scaling.") + y.key, *(f.*y.value));
}

}  // namespace carat
