// label: plain
// Every flag of llama-server: taken, taken without effect, or refused with what to use instead; the table in
// docs/operations.md says which.
#include "apps/llama_flags.h"
#include "apps/other_flags.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

using namespace carat;

namespace {

struct Listed {
  std::vector<std::string> names;
  std::string value;  // "": it takes none
};

std::vector<Listed> listed() {
  std::ifstream in(CARAT_TEST_DATA "/llama_server_flags.txt");
  std::vector<Listed> all;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    Listed l;
    const size_t space = line.find(' ');
    if (space != std::string::npos) l.value = line.substr(space + 1);
    if (l.value.ends_with('?')) l.value.pop_back();
    std::istringstream names(line.substr(0, space));
    for (std::string name; std::getline(names, name, ',');) l.names.push_back(name);
    all.push_back(std::move(l));
  }
  return all;
}

struct Outcome {
  int status = -1;
  std::string output;
};

// The program itself, with no environment but this: a proxy or a preloaded library would add words of its
// own. Nothing is where it looks for a model, and the network is not tried again and again: what it takes
// ends with status 1.
Outcome carat_serve(const std::string& flags) {
  const std::string command =
      "env -i CARAT_MODEL=/nowhere/model.gguf CARAT_PORT=0 CARAT_OFFLINE=true HF_HOME=/nowhere "
      "'" CARAT_PROGRAM "' serve " +
      flags + " 2>&1 </dev/null";
  Outcome o;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    o.output.append(buffer.data(), n);
  o.status = ::pclose(pipe) >> 8;
  return o;
}

// Values are separated by spaces.
std::string quoted(const std::string& values) {
  std::istringstream in(values);
  std::string all;
  for (std::string value; in >> value;) all += " '" + value + "'";
  return all;
}

bool ours(const std::string& name) {
  const LlamaFlag* flag = find_llama_flag(name);
  return !flag || flag->use == LlamaUse::ours;
}

Translated translate(const std::vector<std::string>& args) {
  return translate_llama_flags(
      args, [](std::string_view name) { return name.starts_with("--") && ours(std::string(name)); });
}
using Args = std::vector<std::string>;

std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string table() {
  std::string same, result;
  std::map<std::string, std::map<std::string, std::string>> rows;  // use, note: names
  std::map<std::string, std::vector<std::string>> order;
  for (const Listed& l : listed())
    for (const std::string& name : l.names) {
      const LlamaFlag* flag = find_llama_flag(name);
      if (!flag) {
        same += (same.empty() ? "`" : " `") + name + "`";
        continue;
      }
      const std::string use = flag->use == LlamaUse::ignored   ? "changes nothing"
                              : flag->use == LlamaUse::refused ? "refused"
                                                               : "as";
      const std::string note = use == "as" ? "`" + std::string(flag->to) + "`" : flag->to;
      std::string& names = rows[use][note];
      if (names.empty()) order[use].push_back(note);
      names += (names.empty() ? "`" : " `") + name + "`";
    }
  result = "| llama-server | here | |\n| --- | --- | --- |\n| " + same + " | the same | |\n";
  for (const char* use : {"as", "changes nothing", "refused"})
    for (const std::string& note : order[use])
      result += "| " + rows[use][note] + " | " + use + " | " + cell(note) + " |\n";
  return result;
}

}  // namespace

TEST_CASE("llama-server's flags: each is taken or refused with what to use instead") {
  int taken = 0, without_effect = 0, refused = 0;
  for (const Listed& l : listed())
    for (const std::string& name : l.names) {
      CAPTURE(name);
      const Outcome o = carat_serve(name + quoted(l.value));
      CAPTURE(o.output);
      const LlamaFlag* flag = find_llama_flag(name);
      CHECK(o.output.find("unknown argument") == std::string::npos);
      if (flag && flag->use == LlamaUse::refused) {
        ++refused;
        CHECK(o.status == 2);
        CHECK(o.output.find("error: " + name + (l.value.empty() ? "" : " " + l.value) +
                            " cannot work here") == 0);
        CHECK(o.output.find(std::string("hint: ") + flag->to) != std::string::npos);
      } else {
        CHECK((o.status == 1 || o.status == 0));
        const bool said = o.output.find(name + (l.value.empty() ? "" : " " + l.value) + ": taken, but") !=
                          std::string::npos;
        CHECK(said == (flag && flag->use == LlamaUse::ignored));
        ++(said ? without_effect : taken);
      }
    }
  MESSAGE(taken, " work, ", without_effect, " change nothing, ", refused, " are refused");
}

TEST_CASE("the table of llama.cpp's flags in docs/operations.md is what the program does") {
  std::ifstream in("docs/operations.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string begin = "<!-- llama.cpp's flags: made by tests/llama_flags_test.cc -->\n",
                    end = "<!-- end -->";
  const size_t at = text.find(begin), to = text.find(end, at);
  REQUIRE(at != std::string::npos);
  const std::string now = text.substr(at + begin.size(), to - at - begin.size());
  if (now != table()) {
    std::ofstream("build/operations.md") << text.substr(0, at + begin.size()) << table() << text.substr(to);
    MESSAGE("as it should be: build/operations.md");
  }
  CHECK(now == table());
}

TEST_CASE("vLLM's flags of a published start script are taken under our names") {
  const auto other = [](const Args& args) {
    return translate_other_flags(args, [](std::string_view) { return false; });
  };
  const Translated t =
      other({"-m", "x", "--max-model-len=4096", "--served-model-name", "gemma", "--kv-cache-dtype", "fp8",
             "--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "gemma4",
             "--limit-mm-per-prompt", R"({"image": 0})", "--tensor-parallel-size", "1",
             "--speculative-config", R"({"method": "mtp", "model": "a.gguf", "num_speculative_tokens": 4})"});
  CHECK(t.args == Args{"-m", "x", "--ctx-size", "4096", "--alias", "gemma", "--cache-type-k", "fp8",
                       "--cache-type-v", "fp8", "--spec", "mtp", "--model-draft", "a.gguf", "--draft-max",
                       "4"});
  CHECK(t.ignored.size() == 5);
  CHECK(other({"--max-ctx", "512", "--budget", "22", "--ctk", "tq3_0"}).args ==
        Args{"--ctx-size", "512", "--draft-max", "22", "--cache-type-k", "tq3_0"});
  CHECK(other({"--quantization", "fp8", "--enforce-eager"}).args ==
        Args{"--load-as", "fp8", "--cuda-graphs", "off"});
  CHECK_THROWS_AS(other({"--quantization", "awq"}), UsageError);
  CHECK_THROWS_AS(other({"--tensor-parallel-size", "2"}), UsageError);
  CHECK_THROWS_AS(other({"--speculative-config", R"({"method": "eagle3"})"}), UsageError);
  CHECK_THROWS_AS(other({"--speculative-config", "mtp"}), UsageError);
  CHECK_THROWS_AS(other({"--max-model-len"}), UsageError);
}

TEST_CASE("names of several letters behind one dash are no clusters of short flags") {
  CHECK(translate({"-fa"}).ignored == Args{"-fa"});
  CHECK(translate({"-fa", "on", "-c", "64"}).args == Args{"-c", "64"});
  CHECK(translate({"-fa", "-c", "64"}).args == Args{"-c", "64"});
  CHECK(translate({"-tb", "4"}).ignored == Args{"-tb 4"});
  CHECK(translate({"-hf", "org/repo"}).args == Args{"--hf-repo", "org/repo"});
  CHECK(translate({"-ctk", "q8_0", "-np", "-1"}).args == Args{"--cache-type-k", "q8_0", "--parallel", "0"});
  CHECK(translate({"-p", "a text", "--", "-fa"}).args == Args{"-p", "a text", "--", "-fa"});
}

TEST_CASE("one dash and letters that are no flag are refused as they were typed") {
  const auto check = [](const Args& args) {
    refuse_clusters(args, [](std::string_view name) -> std::optional<bool> {
      if (name == "-s" || name == "-m" || name == "-p" || name == "--predict") return true;
      return name == "--raw" ? std::optional(false) : std::nullopt;
    });
  };
  for (const char* typed : {"-st", "-sysf", "-pp", "-no-such", "-mli"}) {
    CAPTURE(typed);
    try {
      check({"--raw", typed, "1"});
      CHECK(std::string_view(typed) == "-no-such");  // no short flag begins it: the parser refuses it
    } catch (const UsageError& e) {
      CHECK(e.what() == fmt::format("there is no flag {}", typed));
    }
  }
  check({"-s", "4", "-m/a/b.gguf", "-mmodel.gguf", "-s4", "--predict", "-5", "-p", "-st", "--", "-st"});
  check({"-m", "-st", "-p", "-pp"});
}

TEST_CASE("values that decide") {
  CHECK(translate({"-dev", "CUDA0,CUDA1"}).changed == Args{"-dev CUDA0,CUDA1 as --device cuda:0,cuda:1"});
  CHECK(translate({"-ts", "3,1", "-sm", "row"}).args == Args{"--tensor-split", "3,1", "--split-mode", "row"});
  CHECK(translate({"-mg", "2"}).args == Args{"--main-gpu", "2"});
  CHECK(translate({"-dev", "none"}).args == Args{"--device", "cpu"});
  CHECK(translate({"-ngl", "all"}).args == Args{"--n-gpu-layers", "999"});
  CHECK(translate({"-ngl", "auto"}).args.empty());
  CHECK(translate({"--mirostat", "2"}).args == Args{"--mirostat", "2"});
  CHECK(translate({"--adaptive-target", "-1"}).ignored == Args{"--adaptive-target -1"});
  CHECK_THROWS_AS(translate({"--adaptive-target", "0.5"}), UsageError);
  CHECK(translate({"--reasoning", "on"}).args == Args{"--think"});
  CHECK(translate({"--reasoning", "off"}).args == Args{"--no-think"});
  CHECK(translate({"-rea", "auto"}).ignored == Args{"-rea auto"});
  CHECK(translate({"--reasoning-effort", "none"}).args == Args{"--no-think"});
  CHECK(translate({"--reasoning-effort", "default"}).args.empty());
  CHECK(translate({"--chat-template-kwargs", R"({"enable_thinking": true})"}).args == Args{"--think"});
  CHECK(translate({"--chat-template-kwargs", R"({"enable_thinking": false})"}).args == Args{"--no-think"});
  CHECK_THROWS_AS(translate({"--chat-template-kwargs", R"({"style": "short"})"}), UsageError);
  CHECK(translate({"--flash-attn=off"}).ignored == Args{"--flash-attn=off"});
  CHECK_THROWS_AS(translate({"--rpc"}), UsageError);  // a value is missing
}
