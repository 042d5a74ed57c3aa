// An answer as it comes, in the terminal.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/chat.h"

namespace carat {

// Thinking in grey where a person watches, so that it cannot be mistaken for the answer; nowhere else is it
// printed.
class ChatPrinter {
 public:
  explicit ChatPrinter(bool show_thinking) : show_thinking_(show_thinking), colour_(::isatty(1) != 0) {}
  void print(const std::vector<ChatDelta>& deltas) {
    for (const ChatDelta& d : deltas) {
      if (d.kind != ChatDelta::Kind::tool_arguments) end_call();
      switch (d.kind) {
        case ChatDelta::Kind::content:
          style("");
          out(d.text);
          break;
        case ChatDelta::Kind::thinking:
          if (show_thinking_) style("\033[2m"), out(d.text);
          break;
        case ChatDelta::Kind::tool_name:
          style("\033[36m");
          out(fmt::format("[call {} ", d.text));
          calling_ = true;
          break;
        case ChatDelta::Kind::tool_arguments: out(d.text); break;
        case ChatDelta::Kind::tool_end: break;
      }
    }
    std::fflush(stdout);
  }
  void finish() {
    end_call();
    style("");
    if (!ends_with_newline_) std::fputc('\n', stdout);
    std::fflush(stdout);
  }

 private:
  void end_call() {
    if (std::exchange(calling_, false)) out("]\n");
  }
  void style(const char* code) {
    if (!colour_ || style_ == code) return;
    std::fputs("\033[0m", stdout);
    std::fputs(code, stdout);
    if (style_ == "\033[2m") out("\n");
    style_ = code;
  }
  void out(const std::string& text) {
    if (text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    ends_with_newline_ = text.back() == '\n';
  }
  bool show_thinking_, colour_, ends_with_newline_ = true;
  bool calling_ = false;
  std::string style_;
};

}  // namespace carat
