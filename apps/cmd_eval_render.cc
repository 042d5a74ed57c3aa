// carat eval render: the prompt of a conversation, exactly as the template writes it.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>

#include "apps/cli.h"
#include "base/error.h"
#include "base/file.h"
#include "text/chat/gemma.h"
#include "text/jinja/jinja.h"
#include "tools/vocab.h"

namespace carat {
namespace {

struct RenderOptions {
  std::string template_file, model, messages, bos, eos;
};

Json read_conversation(const std::string& path) {
  Json file = Json::parse(read_file(path), nullptr, false);
  if (file.is_array()) file = Json{{"messages", std::move(file)}};
  if (!file.is_object() || !file.contains("messages")) {
    throw Error(fmt::format("{} is not a conversation", path),
                "A JSON object with messages and, if wanted, tools, enable_thinking, add_generation_prompt.");
  }
  if (!file.contains("add_generation_prompt")) file["add_generation_prompt"] = true;
  return file;
}

std::string native(const Json& file, const std::string& bos, bool empty_thought) {
  const auto flag = [&](const char* key, bool standard) {
    return file.contains(key) && file[key].is_boolean() ? file[key].get<bool>() : standard;
  };
  ChatInput input;
  input.messages = file["messages"];
  if (file.contains("tools")) input.tools = file["tools"];
  input.think = flag("enable_thinking", false);
  input.add_generation_prompt = flag("add_generation_prompt", true);
  input.bos = bos;
  input.extra = file;
  return render_gemma4(input, empty_thought);
}

std::string render(const RenderOptions& o) {
  Json file = read_conversation(o.messages);
  std::string text, bos = o.bos, eos = o.eos;
  if (o.model.empty()) {
    text = read_file(o.template_file);
  } else {
    const auto source = open_source(o.model);
    const TokenizerData vocabulary = tokenizer_from_source(*source);
    const auto piece = [&](Token id) {
      return id >= 0 && static_cast<size_t>(id) < vocabulary.tokens.size()
                 ? vocabulary.tokens[static_cast<size_t>(id)]
                 : "";
    };
    if (bos.empty()) bos = piece(vocabulary.bos);
    if (eos.empty()) eos = piece(vocabulary.eos);
    text = vocabulary.chat_template;
    if (text.empty()) {
      const std::string arch = source->meta().get_string("general.architecture");
      if (arch != "gemma4")
        throw Error(fmt::format("{} has no chat template", o.model), "Give one with --template.");
      const bool per_layer = source->meta().get_int_or("gemma4.embedding_length_per_layer_input", 0) > 0;
      return native(file, bos, !per_layer);
    }
  }
  file["bos_token"] = bos;
  file["eos_token"] = eos;
  return JinjaTemplate(text).render(file);
}

}  // namespace

void add_eval_render(CLI::App& eval) {
  auto* sub = eval.add_subcommand("render", "Print the prompt that a chat template makes of a conversation");
  auto o = std::make_shared<RenderOptions>();
  auto* from = sub->add_option_group("template");
  from->add_option("--template", o->template_file, "A Jinja chat template");
  from->add_option("-m,--model", o->model, "A model file or directory: its own template");
  from->require_option(1);
  sub->add_option("--messages", o->messages,
                  "JSON: messages, tools, enable_thinking, add_generation_prompt (default true)")
      ->required();
  sub->add_option("--bos", o->bos, "Text of the token that begins a text (default with -m: the model's)");
  sub->add_option("--eos", o->eos, "Text of the token that ends a text (default with -m: the model's)");
  sub->callback([o] {
    const std::string prompt = render(*o);
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
  });
}

}  // namespace carat
