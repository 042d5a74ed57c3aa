// carat completions SHELL, carat man: what the parser knows of commands and flags, as shells and man read it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/help.h"

namespace carat {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

std::vector<const CLI::Option*> all_flags(const CLI::App& app) {
  std::vector<const CLI::Option*> all;
  for (const FlagGroup& g : flag_groups(app, true)) all.insert(all.end(), g.flags.begin(), g.flags.end());
  return all;
}
std::vector<std::string> names_of(const CLI::Option& flag) {
  std::vector<std::string> names;
  for (const std::string& n : flag.get_snames()) names.push_back("-" + n);
  for (const std::string& n : flag.get_lnames()) names.push_back("--" + n);
  return names;
}
// The program and every command below, with the words that lead there: "", "run", "eval kld".
void each_command(const CLI::App& app, const std::string& words,
                  const std::function<void(const CLI::App&, const std::string&)>& use) {
  use(app, words);
  for (const CLI::App* sub : commands_of(app))
    each_command(*sub, words + (words.empty() ? "" : " ") + sub->get_name(), use);
}
std::string sub_names(const CLI::App& app) {
  std::string all;
  for (const CLI::App* sub : commands_of(app)) all += (all.empty() ? "" : " ") + sub->get_name();
  return all;
}

// Bash: words of commands lead to a list of words, flags with choices to theirs; files else.
std::string bash(const CLI::App& app) {
  std::string lists, values;
  each_command(app, "", [&](const CLI::App& a, const std::string& words) {
    std::string all = sub_names(a);
    for (const CLI::Option* flag : all_flags(a)) {
      for (const std::string& name : names_of(*flag)) all += (all.empty() ? "" : " ") + name;
      if (const auto choices = flag_choices(*flag); !choices.empty())
        for (const std::string& name : names_of(*flag))
          values += fmt::format("    '{}'*' {}') words='{}' ;;\n", words, name, fmt::join(choices, " "));
    }
    lists += fmt::format("    '{}') words='{}'; commands='{}' ;;\n", words, all, sub_names(a));
  });
  return R"(# bash completion of carat; made by `carat completions bash`
_carat_words() {
  case $1 in
)" + lists +
         R"(  esac
}
_carat() {
  local cur=${COMP_WORDS[COMP_CWORD]} at= words= commands= i
  _carat_words ''
  for ((i = 1; i < COMP_CWORD; i++)); do
    case " $commands " in
      *" ${COMP_WORDS[i]} "*) at="${at:+$at }${COMP_WORDS[i]}"; _carat_words "$at" ;;
    esac
  done
  case "$at ${COMP_WORDS[COMP_CWORD - 1]}" in
)" + values +
         R"(    *)
      if [[ $cur != -* && -z $commands ]]; then return; fi
      ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _carat carat
)";
}

std::string zsh_quoted(const std::string& text) {
  std::string out = replaced(text, "\\", "\\\\");
  for (const char* c : {":", "[", "]"}) out = replaced(out, c, std::string("\\") + c);
  return replaced(out, "'", "'\\''");
}

std::string zsh(const CLI::App& app) {
  std::string functions;
  each_command(app, "", [&](const CLI::App& a, const std::string& words) {
    std::string body;
    for (const CLI::Option* flag : all_flags(a)) {
      const auto choices = flag_choices(*flag);
      const std::string value = flag_value(*flag), what = zsh_quoted(flag->get_description());
      std::string taken;
      if (!value.empty()) taken = ":value:";
      if (!choices.empty()) taken = fmt::format(":value:({})", fmt::join(choices, " "));
      if (value == "FILE") taken = ":file:_files";
      if (value == "DIR") taken = ":folder:_files -/";
      for (const std::string& name : names_of(*flag))
        body += fmt::format(" \\\n    '{}[{}]{}'", name, what, taken);
    }
    std::string list, cases;
    for (const CLI::App* sub : commands_of(a)) {
      list += fmt::format(" '{}:{}'", sub->get_name(), zsh_quoted(sub->get_description()));
      cases += fmt::format("      {}) _carat_{} ;;\n", sub->get_name(),
                           replaced(words + (words.empty() ? "" : " ") + sub->get_name(), " ", "_"));
    }
    const std::string name = words.empty() ? "_carat" : "_carat_" + replaced(words, " ", "_");
    if (list.empty()) {
      functions += fmt::format("{}() {{\n  _arguments{} \\\n    '*:file:_files'\n}}\n", name, body);
    } else {
      functions += fmt::format(
          "{}() {{\n  local line state\n  _arguments -C{} \\\n    '1:command:->command' "
          "'*::argument:->argument'\n"
          "  case $state in\n  command) local -a commands=({}); _describe command commands ;;\n  argument)\n"
          "    case $line[1] in\n{}    esac ;;\n  esac\n}}\n",
          name, body, list, cases);
    }
  });
  return "#compdef carat\n# zsh completion of carat; made by `carat completions zsh`\n" + functions +
         "_carat \"$@\"\n";
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish(const CLI::App& app) {
  std::string text = "# fish completion of carat; made by `carat completions fish`\n";
  each_command(app, "", [&](const CLI::App& a, const std::string& words) {
    std::string when = words.empty() ? "__fish_use_subcommand" : "";
    for (size_t at = 0; at < words.size();) {
      const size_t end = std::min(words.find(' ', at), words.size());
      when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + words.substr(at, end - at));
      at = end + 1;
    }
    const std::string begin = fmt::format("complete -c carat -n {}", fish_quoted(when));
    for (const CLI::App* sub : commands_of(a))
      text += fmt::format("{} -f -a {} -d {}\n", begin, sub->get_name(), fish_quoted(sub->get_description()));
    for (const CLI::Option* flag : all_flags(a)) {
      text += begin;
      for (const std::string& n : flag->get_snames()) text += " -s " + n;
      for (const std::string& n : flag->get_lnames()) text += " -l " + n;
      const std::string value = flag_value(*flag);
      const auto choices = flag_choices(*flag);
      if (!choices.empty())
        text += fmt::format(" -x -a '{}'", fmt::join(choices, " "));
      else if (value == "FILE")
        text += " -r -F";
      else if (value == "DIR")
        text += " -x -a '(__fish_complete_directories)'";
      else if (!value.empty())
        text += " -x";
      text += fmt::format(" -d {}\n", fish_quoted(flag->get_description()));
    }
  });
  return text;
}

// Text as troff takes it.
std::string roff(const std::string& text) {
  std::string out = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  if (!out.empty() && (out[0] == '.' || out[0] == '\'')) out = "\\&" + out;
  return out;
}

std::string man_flags(const CLI::App& app) {
  std::string text;
  for (const FlagGroup& g : flag_groups(app, true)) {
    text += ".SS " + roff(g.title) + "\n";
    for (const CLI::Option* flag : g.flags) {
      std::string names;
      for (const std::string& n : names_of(*flag))
        names += (names.empty() ? "" : ", ") + ("\\fB" + roff(n) + "\\fR");
      const std::string value = flag_value(*flag), standard = flag->get_default_str();
      text += ".TP\n" + names + (value.empty() ? "" : " \\fI" + roff(value) + "\\fR") + "\n";
      text += roff(flag->get_description()) + (standard.empty() ? "" : " (default: " + roff(standard) + ")") +
              "\n";
    }
  }
  return text;
}

std::string man(const CLI::App& app) {
  std::string text = ".TH CARAT 1 \"\" \"carat " CARAT_VERSION "\" \"User Commands\"\n.SH NAME\ncarat \\- " +
                     roff(app.get_description()) +
                     "\n.SH SYNOPSIS\n.B carat\n.I COMMAND\n[\\fIFLAGS\\fR]\n.SH COMMANDS\n";
  for (const CLI::App* sub : commands_of(app))
    text += ".TP\n.B " + roff(sub->get_name()) + "\n" + roff(sub->get_description()) + "\n";
  each_command(app, "", [&](const CLI::App& a, const std::string& words) {
    if (words.empty() || !commands_of(a).empty()) return;
    text += ".SH \"" + roff("CARAT " + words) + "\"\n" + roff(a.get_description()) + "\n" + man_flags(a);
  });
  return text + ".SH \"FLAGS OF ALL COMMANDS\"\n" + man_flags(app) + R"(.SH ENVIRONMENT
Every flag \fB\-\-some\-flag\fR is also the variable \fBCARAT_SOME_FLAG\fR and a key of the file of \fB\-\-config\fR.
Flags win over the environment, the environment over the file.
.PP
\fBHF_HOME\fR, \fBHF_HUB_CACHE\fR, \fBHF_ENDPOINT\fR and \fBHF_TOKEN\fR mean what they mean for Hugging Face's own programs.
.SH "EXIT STATUS"
0: done. 1: the command failed, and a line on standard error says why. 2: wrong usage.
)";
}

}  // namespace

void add_shell(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* c =
      app.add_subcommand("completions", "Print the completion script of a shell: bash, zsh or fish");
  c->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  c->callback([&app, shell] {
    const std::string text = *shell == "bash" ? bash(app) : *shell == "zsh" ? zsh(app) : fish(app);
    std::fputs(text.c_str(), stdout);
  });
  app.add_subcommand("man", "Print the manual page (carat man | man -l -)")->callback([&app] {
    std::fputs(man(app).c_str(), stdout);
  });
}

}  // namespace carat
