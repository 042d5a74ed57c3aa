// carat convert IN OUT.gguf
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <chrono>

#include "apps/cli.h"
#include "apps/progress.h"
#include "base/log.h"
#include "tools/convert.h"
#include "tools/type_mix.h"

namespace carat {

void add_convert(CLI::App& app) {
  auto* sub =
      app.add_subcommand("convert", "Make a GGUF file from a Hugging Face directory or another GGUF file");
  auto options = std::make_shared<ConvertOptions>();
  sub->add_option("in", options->in, "Directory with config.json and *.safetensors, or a .gguf file")
      ->required();
  sub->add_option("out", options->out, "The file to write")->required();
  sub->add_option("--type", options->type, "Type of the weights: " + recipe_names())->capture_default_str();
  sub->add_option("--imatrix", options->imatrix, "Importance of columns, measured by an imatrix tool");
  sub->add_option("-t,--threads", options->threads, "Threads; 0: as many as the machine has");
  sub->callback([options] {
    const auto start = std::chrono::steady_clock::now();
    ConvertResult result;
    {
      ProgressBar bar("converting", "B");
      result = convert(
          *options, [&](double done, double total, std::string_view name) { bar.update(done, total, name); });
    }
    if (!result.has_tokenizer) {
      log_warn("'{}' has no tokenizer; the new file can be used for token ids only", options->in);
    }
    if (result.skipped) log_info("{} tensors of vision or audio towers were left out", result.skipped);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{}: {} tensors, {} from {}, {:.1f} s\n", options->out, result.tensors,
               human_bytes(static_cast<double>(result.bytes_out)),
               human_bytes(static_cast<double>(result.bytes_in)), s);
  });
}

}  // namespace carat
