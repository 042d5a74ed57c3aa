// tokenizer_diff EXPECTED MODEL_DIR: compares our tokenizer, made from MODEL_DIR/tokenizer.json, with what
// expected.mjs wrote. The same again from the data as a GGUF file carries it.
#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer/tokenizer.h"

using namespace carat;
using nlohmann::json;

namespace {

std::string well_formed(const std::string& bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  return out + stream.finish();
}

struct Score {
  int64_t texts = 0, bytes = 0, tokens = 0, mismatches = 0;
  double seconds = 0;

  void compare(const char* what, const std::string& text, const std::string& ours,
               const std::string& theirs) {
    if (ours == theirs) return;
    if (++mismatches > 20) return;
    const auto line = [](const std::string& s) {
      return json(s.substr(0, 300)).dump(-1, ' ', true, json::error_handler_t::replace);
    };
    fmt::print("{} differs\n  text   {}\n  ours   {}\n  theirs {}\n", what, line(text), line(ours),
               line(theirs));
  }
};

std::string list(const Tokenizer& t, const std::vector<Token>& ids, const std::vector<Token>& other) {
  size_t same = 0;
  while (same < ids.size() && same < other.size() && ids[same] == other[same]) ++same;
  std::string out = same == ids.size() && same == other.size() ? "" : fmt::format("from {}:", same);
  for (size_t i = same; i < ids.size() && i < same + 12; ++i) {
    out += fmt::format(" {}({})", ids[i], ids[i] >= 0 && ids[i] < t.size() ? t.data().tokens[ids[i]] : "?");
  }
  return out;
}

Score compare_all(const Tokenizer& t, const std::string& expected) {
  Score score;
  std::istringstream lines(expected);
  for (std::string line; std::getline(lines, line);) {
    const json c = json::parse(line);
    const auto ids = c[1].get<std::vector<Token>>();
    if (c[0].is_null()) {
      score.compare("decoding of ids", c[1].dump(), well_formed(t.decode(ids, true)), c[2]);
      continue;
    }
    const std::string text = c[0];
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Token> ours = t.encode(text, true);
    score.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++score.texts;
    score.bytes += static_cast<int64_t>(text.size());
    score.tokens += static_cast<int64_t>(ours.size());
    score.compare("encoding", text, list(t, ours, ids), list(t, ids, ours));
    score.compare("decoding", text, t.decode(ids, true), c[2]);
    score.compare("decoding without specials", text, t.decode(ids, false), c[3]);
  }
  return score;
}

void spot_checks(const Tokenizer& t, Score& score) {
  const std::pair<const char*, Token> gemma[] = {
      {"Hello", 9259}, {"user", 2364}, {"thought", 45518}, {"call", 6639}, {":", 236787},
      {"{", 236782},   {"}", 236783},  {"\n", 107},        {"\n\n", 108},  {"</s>", 212}};
  for (const auto& [text, id] : gemma) {
    const std::vector<Token> ours = t.encode(text, true), want{id};
    score.compare("spot check", text, list(t, ours, want), list(t, want, ours));
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int run(const std::string& expected_path, const std::string& dir) {
  const std::string expected = read_file(expected_path);
  auto start = std::chrono::steady_clock::now();
  TokenizerData data =
      read_tokenizer_json(read_file(dir + "/tokenizer.json"), read_file(dir + "/tokenizer_config.json"), "");
  const double parse = seconds_since(start);
  TokenizerData gguf = data;
  gguf.split_pattern.clear();
  gguf.nfc = gguf.ignore_merges = false;
  gguf.fuse_unk = true;
  gguf.added_rules.clear();
  start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer(std::move(data)), from_gguf(std::move(gguf));
  const double build = seconds_since(start) / 2;

  Score score = compare_all(tokenizer, expected);
  if (tokenizer.data().model == "gemma4") spot_checks(tokenizer, score);
  const Score second = compare_all(from_gguf, expected);
  fmt::print("{} tokens: {} texts, {} bytes, {} tokens; {} mismatches, {} with the data of a GGUF file\n",
             tokenizer.size(), score.texts, score.bytes, score.tokens, score.mismatches, second.mismatches);
  fmt::print("tokenizer.json read in {:.0f} ms, tokenizer built in {:.0f} ms, encodes {:.1f} MB/s\n",
             parse * 1e3, build * 1e3, static_cast<double>(score.bytes) / score.seconds / 1e6);
  return score.texts > 0 && score.mismatches + second.mismatches == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: tokenizer_diff EXPECTED MODEL_DIR\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n{}\n", e.what(), e.hint());
    return 1;
  }
}
