#include "apps/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

namespace carat {
namespace {

// In a locale that is not one of UTF-8 libedit drops every byte beyond ASCII; what terminals send is UTF-8.
void use_utf8() {
  if (std::setlocale(LC_CTYPE, "") && std::string_view(::nl_langinfo(CODESET)) == "UTF-8") return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
}

// Pasted text arrives between ESC [200~ and ESC [201~: its line ends do not send it.
constexpr const char* kPasteBegins = "\033[200~";
constexpr std::wstring_view kPasteEnds = L"\033[201~";

unsigned char paste(EditLine* edit, wint_t) {
  std::wstring text;
  wchar_t c = 0;
  while (el_wgetc(edit, &c) == 1) {
    text += c == L'\r' ? L'\n' : c;
    if (!text.ends_with(kPasteEnds)) continue;
    text.resize(text.size() - kPasteEnds.size());
    break;
  }
  while (!text.empty() && text.back() == L'\n') text.pop_back();
  if (text.empty()) return CC_REFRESH;
  return el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// Ctrl-Z while a line is edited: the terminal is given back for as long as the program sleeps.
unsigned char suspend(EditLine* edit, wint_t) {
  el_set(edit, EL_PREP_TERM, 0);
  std::raise(SIGTSTP);
  el_set(edit, EL_PREP_TERM, 1);
  return CC_REDISPLAY;
}

void ask_for_paste_marks(bool on) {
  if (::isatty(1) == 0) return;
  std::fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
  std::fflush(stdout);
}

}  // namespace

struct LineReader::Impl {
  EditLine* edit = (use_utf8(), el_init("carat", stdin, stdout, stderr));
  History* history = history_init();
};

LineReader::LineReader() : impl_(std::make_unique<Impl>()) {
  HistEvent event;
  ::history(impl_->history, &event, H_SETSIZE, 500);
  ::history(impl_->history, &event, H_SETUNIQUE, 1);
  el_set(
      impl_->edit, EL_PROMPT, +[](EditLine*) { return const_cast<char*>("> "); });
  el_set(impl_->edit, EL_EDITOR, "emacs");
  el_set(impl_->edit, EL_HIST, ::history, impl_->history);
  el_wset(impl_->edit, EL_ADDFN, L"carat-paste", L"insert pasted text", paste);
  el_set(impl_->edit, EL_BIND, kPasteBegins, "carat-paste", nullptr);
  // While a line is edited Ctrl-C is a key, which empties it; else it is the signal that stops an answer.
  el_set(impl_->edit, EL_SETTY, "-d", "-isig", nullptr);
  el_set(impl_->edit, EL_BIND, "^C", "ed-start-over", nullptr);
  el_wset(impl_->edit, EL_ADDFN, L"carat-suspend", L"suspend the program", suspend);
  el_set(impl_->edit, EL_BIND, "^Z", "carat-suspend", nullptr);
}
LineReader::~LineReader() {
  history_end(impl_->history);
  el_end(impl_->edit);
}

bool LineReader::read(std::string& text) {
  text.clear();
  for (;;) {
    int n = 0;
    el_set(impl_->edit, EL_PREP_TERM,
           1);  // before the prompt: it says that keys are keys, Ctrl-C and Ctrl-D too
    ask_for_paste_marks(true);
    const char* line = el_gets(impl_->edit, &n);
    ask_for_paste_marks(false);
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
