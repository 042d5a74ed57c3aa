#include "text/chat/chat.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/chat/gemma.h"
#include "text/chat/qwen.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer/tokenizer.h"

namespace carat {
namespace {

// Everything is content.
class PlainParser final : public ChatParser {
 public:
  std::vector<ChatDelta> push(std::string_view text) override { return wrap(utf8_.push(text)); }
  std::vector<ChatDelta> finish(bool) override { return wrap(utf8_.finish()); }

 private:
  static std::vector<ChatDelta> wrap(std::string text) {
    if (text.empty()) return {};
    return {{ChatDelta::Kind::content, std::move(text), 0}};
  }
  Utf8Stream utf8_;
};

bool is_gemma4(std::string_view arch) { return arch == "gemma4"; }
bool is_qwen(std::string_view arch) { return arch == "qwen35" || arch == "qwen35moe"; }

class NativeGemma final : public ChatFormat {
 public:
  explicit NativeGemma(bool empty_thought) : empty_thought_(empty_thought) {}
  std::string_view name() const override { return "gemma4"; }
  std::string render(const ChatInput& input) const override {
    return render_gemma4(normalize_chat(input, true), empty_thought_);
  }
  std::unique_ptr<ChatParser> parser(std::string_view prompt, const AnswerReading& reading) const override {
    return make_gemma4_parser(prompt, reading);
  }
  std::optional<GrammarBuilder::Expr> answer(GrammarBuilder& b, const AnswerForm& form,
                                             std::string_view prompt) const override {
    return gemma4_answer(b, form, prompt);
  }
  std::optional<ThoughtMarks> thought(std::string_view prompt) const override {
    return gemma4_thought(prompt);
  }
  bool wants_special() const override { return true; }

 private:
  bool empty_thought_;
};

class NativeQwen final : public ChatFormat {
 public:
  std::string_view name() const override { return "qwen"; }
  std::string render(const ChatInput& input) const override {
    return render_qwen(normalize_chat(input, false));
  }
  std::unique_ptr<ChatParser> parser(std::string_view prompt, const AnswerReading& reading) const override {
    return make_qwen_parser(prompt, reading);
  }
  std::optional<GrammarBuilder::Expr> answer(GrammarBuilder& b, const AnswerForm& form,
                                             std::string_view prompt) const override {
    return qwen_answer(b, form, prompt);
  }
  std::optional<ThoughtMarks> thought(std::string_view prompt) const override { return qwen_thought(prompt); }
  bool thinks_by_default() const override { return true; }
  bool wants_special() const override { return true; }
};

// Rendered by the model's own template; read by what its architecture is known to write.
class TemplateChat final : public ChatFormat {
 public:
  TemplateChat(std::string_view arch, std::string_view text)
      : gemma_(is_gemma4(arch)), qwen_(is_qwen(arch)), template_(text), thinks_(asked()) {}
  std::string_view name() const override {
    return gemma_ ? "gemma4 (template)" : qwen_ ? "qwen (template)" : "template";
  }

  std::string render(const ChatInput& given) const override {
    ChatInput input = normalize_chat(given, gemma_);
    Json variables = input.extra.is_object() ? std::move(input.extra) : Json::object();
    variables["messages"] = std::move(input.messages);
    if (!input.tools.is_null()) variables["tools"] = std::move(input.tools);
    if (input.think) variables["enable_thinking"] = *input.think;
    variables["add_generation_prompt"] = input.add_generation_prompt;
    variables["bos_token"] = input.bos;
    variables["eos_token"] = input.eos;
    return template_.render(variables);
  }
  std::unique_ptr<ChatParser> parser(std::string_view prompt, const AnswerReading& reading) const override {
    if (gemma_) return make_gemma4_parser(prompt, reading);
    if (qwen_) return make_qwen_parser(prompt, reading);
    return std::make_unique<PlainParser>();
  }
  std::optional<GrammarBuilder::Expr> answer(GrammarBuilder& b, const AnswerForm& form,
                                             std::string_view prompt) const override {
    if (gemma_) return gemma4_answer(b, form, prompt);
    return qwen_ ? qwen_answer(b, form, prompt) : ChatFormat::answer(b, form, prompt);
  }
  std::optional<ThoughtMarks> thought(std::string_view prompt) const override {
    if (gemma_) return gemma4_thought(prompt);
    return qwen_ ? std::optional(qwen_thought(prompt)) : std::nullopt;
  }
  bool thinks_by_default() const override { return thinks_; }
  bool wants_special() const override { return gemma_ || qwen_; }

 private:
  // Not told, the template writes what it writes when told to think, and not what it writes when told not to.
  bool asked() const {
    ChatInput in;
    in.messages = Json::array({{{"role", "user"}, {"content", "carat"}}});
    try {
      const std::string untold = render(in);
      in.think = false;
      if (render(in) == untold) return false;
      in.think = true;
      return render(in) == untold;
    } catch (const Error&) {
      return false;
    }
  }

  bool gemma_, qwen_;
  JinjaTemplate template_;
  bool thinks_;
};

}  // namespace

std::optional<GrammarBuilder::Expr> ChatFormat::answer(GrammarBuilder&, const AnswerForm& form,
                                                       std::string_view) const {
  return form.tools.is_null() ? form.content : std::nullopt;
}

std::unique_ptr<ChatFormat> make_chat_format(std::string_view arch, std::string_view template_text,
                                             const ChatHints& hints) {
  if (!template_text.empty()) return std::make_unique<TemplateChat>(arch, template_text);
  if (is_gemma4(arch)) return std::make_unique<NativeGemma>(hints.empty_thought);
  if (is_qwen(arch)) return std::make_unique<NativeQwen>();
  throw Error(fmt::format("the model has no chat template, and the chat format of '{}' is not known", arch),
              "Give a template with --chat-template FILE, or use raw completion.");
}

}  // namespace carat
