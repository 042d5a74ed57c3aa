#include "apps/line_reader.h"

#include <histedit.h>

#include <cstdio>

namespace carat {

struct LineReader::Impl {
  EditLine* edit = el_init("carat", stdin, stdout, stderr);
  History* history = history_init();
};

LineReader::LineReader() : impl_(std::make_unique<Impl>()) {
  HistEvent event;
  ::history(impl_->history, &event, H_SETSIZE, 500);
  el_set(
      impl_->edit, EL_PROMPT, +[](EditLine*) { return const_cast<char*>("> "); });
  el_set(impl_->edit, EL_EDITOR, "emacs");
  el_set(impl_->edit, EL_HIST, ::history, impl_->history);
}
LineReader::~LineReader() {
  history_end(impl_->history);
  el_end(impl_->edit);
}

bool LineReader::read(std::string& text) {
  text.clear();
  for (;;) {
    int n = 0;
    const char* line = el_gets(impl_->edit, &n);
    if (!line || n <= 0) return !text.empty();
    HistEvent event;
    if (n > 1) ::history(impl_->history, &event, H_ENTER, line);
    text.append(line, static_cast<size_t>(n));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    if (text.empty() || text.back() != '\\') return true;
    text.back() = '\n';
  }
}

}  // namespace carat
