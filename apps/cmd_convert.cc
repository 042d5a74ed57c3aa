// carat convert IN OUT.gguf
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>

#include "apps/cli.h"
#include "apps/progress.h"
#include "base/error.h"
#include "base/log.h"
#include "tools/convert.h"
#include "tools/quantize.h"
#include "tools/type_mix.h"

namespace carat {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_from(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void to_gguf(const ConvertOptions& options) {
  const auto start = Clock::now();
  ConvertResult result;
  {
    ProgressBar bar("converting", "B");
    result = convert(
        options, [&](double done, double total, std::string_view name) { bar.update(done, total, name); });
  }
  if (!result.has_tokenizer) {
    log_warn("'{}' has no tokenizer; the new file can be used for token ids only", options.in);
  }
  if (result.skipped)
    log_info("{} tensors of vision or audio towers were left out: --mmproj writes them", result.skipped);
  fmt::print("{}: {} tensors, {} from {}, {:.1f} s\n", options.out, result.tensors,
             human_bytes(static_cast<double>(result.bytes_out)),
             human_bytes(static_cast<double>(result.bytes_in)), seconds_from(start));
}

void to_directory(const QuantizeOptions& options) {
  const auto start = Clock::now();
  QuantizeResult result;
  {
    ProgressBar bar("quantizing", "B");
    result = quantize(
        options, [&](double done, double total, std::string_view name) { bar.update(done, total, name); });
  }
  if (!result.unfit.empty())
    log_warn("{} linear layers stay as they are, '{}' first: their rows are not whole groups",
             result.unfit.size(), result.unfit[0]);
  if (result.resumed)
    log_info("{} of {} shards were there from an earlier run", result.resumed, result.shards);
  fmt::print("{}: {} linear layers quantized, {} left, {} from {} in {} files, {:.1f} s\n", options.out,
             result.quantized, result.left, human_bytes(static_cast<double>(result.bytes_out)),
             human_bytes(static_cast<double>(result.bytes_in)), result.shards, seconds_from(start));
}

}  // namespace

void add_convert(CLI::App& app) {
  auto* sub =
      app.add_subcommand("convert", "Convert a model into a GGUF file or a quantized Hugging Face directory");
  auto options = std::make_shared<ConvertOptions>();
  auto quantized = std::make_shared<QuantizeOptions>();
  auto rounding = std::make_shared<std::string>("ct");
  sub->add_option("in", options->in, "Directory with config.json and *.safetensors, or a .gguf file")
      ->required();
  sub->add_option("out", options->out, "The .gguf file, or the directory, to write")->required();
  sub->add_option(
         "--type", options->type,
         "Type of the weights in a GGUF file: " + recipe_names() + "; in a directory: " + quantize_types())
      ->capture_default_str();
  sub->add_flag("--mmproj", options->towers,
                "Write the towers alone, as an mmproj file (--type bf16, f16, f32 or q8_0; default bf16)");
  sub->add_option("--imatrix", options->imatrix, "Importance of columns, measured by an imatrix tool");
  sub->add_option(
         "--ignore", quantized->ignore,
         "Directories: modules that stay as they are; re:X matches a name from its start, X anywhere "
         "in it (default: head, embeddings, routers, towers)")
      ->delimiter(',');
  sub->add_option("--rounding", *rounding,
                  "Directories: ct, the bytes that compressed-tensors writes; exact, with smaller errors")
      ->check(CLI::IsMember({"ct", "exact"}))
      ->capture_default_str();
  sub->add_option("--group", quantized->group, "Directories: columns that share a scale in w4a16")
      ->capture_default_str();
  sub->add_option("-t,--threads", options->threads, "Threads; 0: as many as the machine has");
  sub->callback([=] {
    if (options->towers) {
      if (sub->get_option("--type")->count() == 0) options->type = "bf16";
      return to_gguf(*options);
    }
    const bool gguf = options->out.ends_with(".gguf");
    if (!is_quantize_type(options->type) || (gguf && find_recipe(options->type))) return to_gguf(*options);
    if (gguf)
      throw Error(
          fmt::format("{} is a type of directories, '{}' would be a file", options->type, options->out),
          "give the name of a new directory");
    quantized->in = options->in, quantized->out = options->out, quantized->type = options->type;
    quantized->exact = *rounding == "exact", quantized->threads = options->threads;
    to_directory(*quantized);
  });
}

}  // namespace carat
