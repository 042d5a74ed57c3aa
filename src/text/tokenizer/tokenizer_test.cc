#include "text/tokenizer/tokenizer.h"

#include <doctest/doctest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/tokenizer/unicode.h"

using namespace carat;
using nlohmann::json;
using Tokens = std::vector<Token>;

namespace {

// A small vocabulary of Gemma's kind: specials, bytes, a few characters and the results of the merges.
TokenizerData gemma(const std::vector<std::string>& characters, const std::vector<std::string>& merges) {
  TokenizerData d;
  d.model = d.pre = "gemma4";
  const auto put = [&](const std::string& text, TokenType type) {
    d.tokens.push_back(text);
    d.types.push_back(type);
  };
  put("<pad>", TokenType::control);
  put("<eos>", TokenType::normal);  // as published files have it
  put("<bos>", TokenType::control);
  put("<unk>", TokenType::unknown);
  put("<|turn>", TokenType::control);
  put("<turn|>", TokenType::control);
  put("<|tool_call>", TokenType::user_defined);  // as converters have it
  put("<b>", TokenType::user_defined);
  put("<b><i>", TokenType::user_defined);
  put("</s>", TokenType::normal);
  for (int b = 0; b < 256; ++b) put(fmt::format("<0x{:02X}>", b), TokenType::byte);
  for (const auto& c : characters) put(c, TokenType::normal);
  for (const auto& m : merges) {
    const std::string joined = m.substr(0, m.find(' ')) + m.substr(m.find(' ') + 1);
    if (std::find(d.tokens.begin(), d.tokens.end(), joined) == d.tokens.end()) put(joined, TokenType::normal);
  }
  d.merges = merges;
  d.bos = 2;
  d.eos = 5;
  d.unk = 3;
  d.pad = 0;
  return d;
}

std::vector<std::string> pieces(const Tokenizer& t, const Tokens& ids) {
  std::vector<std::string> out;
  for (const Token id : ids) out.push_back(t.data().tokens[id]);
  return out;
}

using Pieces = std::vector<std::string>;

// GPT-2's alphabet, written out independently of the code under test.
std::string letter(int byte) {
  const bool printable =
      (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
  int c = byte;
  if (!printable) c = byte <= 32 ? 256 + byte : byte <= 160 ? 256 + 33 + (byte - 127) : 256 + 67;
  std::string out;
  append_utf8(out, static_cast<char32_t>(c));
  return out;
}

json byte_level_json(const std::vector<std::string>& merges) {
  json vocab = json::object();
  for (int b = 0; b < 256; ++b) vocab[letter(b)] = b;
  int next = 256;
  for (const auto& m : merges) {
    const std::string joined = m.substr(0, m.find(' ')) + m.substr(m.find(' ') + 1);
    if (!vocab.contains(joined)) vocab[joined] = next++;
  }
  const char* pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                        R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, level}}}},
          {"decoder", level},
          {"added_tokens",
           {{{"id", next}, {"content", "<|im_end|>"}, {"special", true}, {"normalized", false}},
            {{"id", next + 1}, {"content", "<think>"}, {"special", false}, {"normalized", false}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// The definition: repeat the best rank, leftmost first. Quadratic.
Tokens merge_by_definition(const Tokenizer& t, Tokens ids) {
  for (;;) {
    size_t best = SIZE_MAX, best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const std::string pair = t.data().tokens[ids[i]] + " " + t.data().tokens[ids[i + 1]];
      const auto it = std::find(t.data().merges.begin(), t.data().merges.end(), pair);
      const size_t rank = static_cast<size_t>(it - t.data().merges.begin());
      if (it != t.data().merges.end() && rank < best_rank) best_rank = rank, best = i;
    }
    if (best == SIZE_MAX) return ids;
    ids[best] = t.find(t.data().tokens[ids[best]] + t.data().tokens[ids[best + 1]]);
    ids.erase(ids.begin() + static_cast<long>(best) + 1);
  }
}

double seconds_to_encode(const Tokenizer& t, const std::string& text) {
  const std::clock_t start = std::clock();  // the processor's seconds: the machine may be busy
  const Tokens ids = t.encode(text, true);
  const double s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  CHECK(t.decode(ids, true) == text);
  return s;
}

}  // namespace

TEST_CASE("merges: best rank first, leftmost on ties") {
  const Tokenizer t(gemma({"a", "b", "c", "▁"}, {"b c", "a b", "a a", "aa a"}));
  CHECK(pieces(t, t.encode("abc", false)) == Pieces{"a", "bc"});
  CHECK(pieces(t, t.encode("aaaaa", false)) == Pieces{"aa", "aaa"});
  CHECK(pieces(t, t.encode("ab ab", false)) == Pieces{"ab", "▁", "ab"});
  // A longer merge of better rank grows from the left, as Gemma's runs of newlines do.
  const Tokenizer runs(gemma({"x"}, {"xxx x", "xx x", "x x"}));
  CHECK(pieces(runs, runs.encode("xxxxxx", false)) == Pieces{"xxxx", "xx"});
}

TEST_CASE("merging follows its definition on random texts, short and long") {
  const Tokenizer t(gemma({"a", "b", "c"}, {"a b", "c a", "ab a", "b b", "c ab", "aba ba", "b a", "ca bb",
                                            "ab ab", "a a", "aa aa", "aba b", "bb a", "abab abab"}));
  uint32_t state = 1;
  for (int n = 1; n <= 120; ++n) {
    std::string text;
    Tokens start;
    for (int i = 0; i < n; ++i) {
      state = state * 1664525 + 1013904223;
      text += static_cast<char>('a' + (state >> 24) % 3);
      start.push_back(t.find(text.substr(text.size() - 1)));
    }
    CHECK(t.encode(text, false) == merge_by_definition(t, start));
  }
}

TEST_CASE("characters outside the vocabulary become bytes, and bytes come back") {
  const Tokenizer t(gemma({"a", "▁"}, {"a a"}));
  CHECK(pieces(t, t.encode("aé", false)) == Pieces{"a", "<0xC3>", "<0xA9>"});
  const std::string broken = "a\xFF\xC3(\xE2\x82 a\xF0\x9F\x98";
  CHECK(t.decode(t.encode(broken, true), true) == broken);
  CHECK(pieces(t, t.encode("\xE2\x96", true)) == Pieces{"<0xE2>", "<0x96>"});
  CHECK(t.piece(t.find("<0x0A>")) == "\n");
  CHECK(t.piece(t.find("▁")) == " ");
  CHECK(t.piece(-1).empty());
  CHECK(t.decode(Tokens{1 << 30, -5}, true).empty());
}

TEST_CASE("without byte tokens a run of unknown characters is one unk") {
  TokenizerData d = gemma({"a"}, {"a a"});
  for (size_t i = 0; i < d.tokens.size(); ++i) {
    if (d.types[i] == TokenType::byte)
      d.tokens[i] = fmt::format("[unused{}]", i), d.types[i] = TokenType::unused;
  }
  const Tokenizer fused(d);
  CHECK(fused.encode("a水火a", false) == Tokens{fused.find("a"), 3, fused.find("a")});
  d.fuse_unk = false;
  CHECK(Tokenizer(d).encode("a水火a", false).size() == 4);
  d.unk = -1;
  CHECK_THROWS_AS(Tokenizer{d}, Error);
}

TEST_CASE("added tokens: longest first, control tokens only when asked") {
  const Tokenizer t(gemma({"a", "b", "i", "<", ">", "|"}, {"a a"}));
  CHECK(t.encode("<b><i>a<b><b", false) == Tokens{8, t.find("a"), 7, t.find("<"), t.find("b")});
  CHECK(t.encode("<|turn>a<turn|>", true) == Tokens{4, t.find("a"), 5});
  const Tokens text = t.encode("<|turn>a<turn|>", false);
  CHECK(std::find(text.begin(), text.end(), 4) == text.end());
  CHECK(t.decode(text, false) == "<|turn>a<turn|>");
  // Gemma's marks are control tokens whatever the file says: what a user writes cannot become one.
  CHECK(t.is_control(6));
  CHECK(t.encode("<|tool_call>", false).size() > 1);
  CHECK(t.encode("<|tool_call>", true) == Tokens{6});
  CHECK(t.decode(Tokens{2, 4, t.find("a"), 6, 7}, false) == "a<b>");
  CHECK(t.decode(Tokens{2, 4, t.find("a")}, true) == "<bos><|turn>a");
}

TEST_CASE("end of generation: eos and Gemma's other ends, not the HTML tag </s>") {
  const Tokenizer t(gemma({"a"}, {"a a"}));
  CHECK(t.is_end(1));
  CHECK(t.is_end(5));
  CHECK_FALSE(t.is_end(t.find("</s>")));
  CHECK_FALSE(t.is_end(2));
  CHECK_FALSE(t.is_end(-1));
  CHECK(t.is_control(1));
  CHECK(t.data().end_of_generation == Tokens{5, 1});
  CHECK(t.data().bos == 2);
  CHECK(t.encode("a", true).front() == t.find("a"));  // the caller puts BOS
}

TEST_CASE("added tokens that strip, stand alone or match normalized text") {
  TokenizerData d = gemma({"a", "▁", "\n"}, {"a a"});
  const auto rule = [&](const char* text, AddedTokenRule r) {
    r.id = static_cast<Token>(d.tokens.size());
    d.tokens.push_back(text);
    d.types.push_back(TokenType::user_defined);
    d.added_rules.push_back(r);
    return r.id;
  };
  const Token left = rule("<l>", {.lstrip = true}), right = rule("<r>", {.rstrip = true});
  const Token word = rule("aaa", {.single_word = true}), space = rule("a b", {.normalized = true});
  const Tokenizer t(d);
  const Token a = t.find("a");
  CHECK(t.encode("a \n<l>a", false) == Tokens{a, left, a});
  CHECK(t.encode("a<r> \n\u3000 a", false) == Tokens{a, right, a});
  CHECK(t.encode(" <l> <l>", false) == Tokens{left, left});
  CHECK(t.encode("aaa aaa", false) == Tokens{word, t.find("▁"), word});
  CHECK(pieces(t, t.encode("éaaa", false)) == Pieces{"<0xC3>", "<0xA9>", "aa", "a"});
  CHECK(t.encode("aa b", false) == Tokens{a, space});
}

TEST_CASE("decode(encode(x)) is x, whatever the text") {
  const Tokenizer t(gemma({"a", "b", "▁", "<", "|", "t"}, {"a b", "▁ a", "▁ ▁"}));
  const Tokenizer q(read_tokenizer_json(byte_level_json({"a b", "Ġ a", "Ġ Ġ"}).dump(), "", ""));
  for (const char* text : {"", " ", "  a  b ", "ab <|turn>", "\u6c34\u706b \U0001F468\u200D\U0001F469",
                           "\t\r\n\n", "a\u00e9", "<b><|tool_call>"}) {
    CHECK(t.decode(t.encode(text, false), false) == text);
    CHECK(q.decode(q.encode(text, false), false) == text);
  }
  const std::string zero("a\0b", 3);
  CHECK(t.decode(t.encode(zero, false), false) == zero);
}

TEST_CASE("byte-level: pieces, NFC, specials; the same from GGUF's `pre` as from tokenizer.json") {
  const TokenizerData d =
      read_tokenizer_json(byte_level_json({"a b", "Ġ ab", "ab ab", "Ã ©", "1 2"}).dump(), "", "");
  CHECK(d.pre == "qwen2");
  TokenizerData gguf = d;
  gguf.split_pattern.clear();
  gguf.nfc = false;
  const Tokenizer t(d), g(gguf);
  CHECK(pieces(t, t.encode("ab ab", false)) == Pieces{"ab", "Ġab"});
  CHECK(pieces(t, t.encode("abab 12", false)) == Pieces{"abab", "Ġ", "1", "2"});  // digits stand alone
  CHECK(pieces(t, t.encode("e\u0301", false)) == Pieces{"Ã©"});
  CHECK(pieces(t, t.encode("<|im_end|><think>", true)) == Pieces{"<|im_end|>", "<think>"});
  CHECK(t.encode("<|im_end|><think>", false).size() == 11);
  CHECK(t.is_end(t.find("<|im_end|>")));
  CHECK(t.decode(t.encode("<|im_end|><think>", true), false) == "<think>");
  for (const char* text : {"x'S 12\r\n\n  y  \u3000z", "'\u017f a\u180eb\u0085c",
                           "e\u0301<think>\xFF\xC3"
                           "ab"}) {
    CHECK(t.encode(text, true) == g.encode(text, true));
  }
  gguf.pre = "no-such";
  CHECK_THROWS_AS(Tokenizer{gguf}, Error);
}

TEST_CASE("tokenizer.json: what it says is read, what we do not know is named") {
  const json good = byte_level_json({"a b"});
  const json config = {
      {"eos_token", {{"content", "<|im_end|>"}}},
      {"add_bos_token", false},
      {"chat_template",
       {{{"name", "tool_use"}, {"template", "T"}}, {{"name", "default"}, {"template", "D"}}}}};
  const TokenizerData d =
      read_tokenizer_json(good.dump(), config.dump(), R"({"eos_token_id": [3, 257, 99999999]})");
  CHECK(d.chat_template == "D");
  CHECK(d.tokens[d.eos] == "<|im_end|>");
  CHECK(d.end_of_generation == Tokens{257, 3});
  json pairs = good;
  pairs["model"]["merges"] = json::array({json::array({"a", "b"})});
  CHECK(read_tokenizer_json(pairs.dump(), "", "").merges == d.merges);

  const auto message = [&](const char* path, const json& value) {
    json bad = good;
    bad[json::json_pointer(path)] = value;
    try {
      Tokenizer t(read_tokenizer_json(bad.dump(), "", ""));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(message("/normalizer/type", "Lowercase").find("\"Lowercase\"") != std::string::npos);
  CHECK(message("/decoder/type", "WordPiece").find("\"WordPiece\"") != std::string::npos);
  CHECK(message("/pre_tokenizer", {{"type", "Whitespace"}}).find("\"Whitespace\"") != std::string::npos);
  CHECK(message("/model/type", "Unigram").find("\"Unigram\"") != std::string::npos);
  CHECK(message("/model/merges/0", "a zz").find("merge 0") != std::string::npos);
  CHECK(message("/model/merges/0", 7).find("merge") != std::string::npos);
  CHECK(message("/model/vocab/a", -1).find("id") != std::string::npos);
  CHECK(message("/model/vocab/a", 2000000000).find("id") != std::string::npos);
  CHECK(message("/added_tokens/0/id", 1.5).find("id") != std::string::npos);
  CHECK(message("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(").find("compile") != std::string::npos);
  for (const std::string& text :
       {std::string("["), std::string("[]"), std::string("{}"), std::string(100000, '['),
        "{\"normalizer\":" + std::string(100000, '[') + std::string(100000, ']') + "}"}) {
    CHECK_THROWS_AS(read_tokenizer_json(text, "", ""), Error);
  }
}

TEST_CASE("a megabyte without a break takes seconds at most") {
  std::vector<std::string> merges;
  for (std::string run = "a"; run.size() < 64; run += run) merges.push_back(run + " " + run);
  std::vector<std::string> spaces;
  for (int n = 30; n > 0; --n) {
    std::string left;
    for (int i = 0; i < n; ++i) left += "▁";
    spaces.push_back(left + " ▁");
  }
  merges.insert(merges.end(), spaces.begin(), spaces.end());
  const Tokenizer t(gemma({"a", "▁", "\n"}, merges));
  const Tokenizer q(
      read_tokenizer_json(byte_level_json({"a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ"}).dump(), "", ""));
  for (const char c : {'a', ' ', '\n', '!', '\x01', '\xFF'}) {
    const std::string text(1 << 20, c);
    CHECK(seconds_to_encode(t, text) < 8);
    CHECK(seconds_to_encode(q, text) < 8);
  }
  std::string marks = "a";
  while (marks.size() < (1 << 20)) marks += marks.size() % 3 ? "\u0323" : "\u0301";
  CHECK(t.decode(t.encode(marks, false), false) == marks);
  CHECK(q.encode(marks, false).size() > 1);
  std::string mixed;
  while (mixed.size() < (1 << 20)) mixed += " \n  <b <|tur";
  CHECK(seconds_to_encode(t, mixed) < 8);
  CHECK(seconds_to_encode(q, mixed) < 8);
}

TEST_CASE("NFC") {
  CHECK(nfc("abc \u00e9") == "abc \u00e9");
  CHECK(nfc("e\u0301") == "\u00e9");
  CHECK(nfc("a\u0301\u0323") == "\u1ea1\u0301");  // marks are ordered by class first
  CHECK(nfc("\u1100\u1161\u11a8") == "\uac01");   // Hangul
  CHECK(nfc("\uac00\u11a8") == "\uac01");
  CHECK(nfc("\u2126\u212b") == "\u03a9\u00c5");  // singletons
  CHECK(nfc("\u0958") == "\u0915\u093c");        // composition exclusion
  CHECK(nfc("\u0344") == "\u0308\u0301");
  CHECK(nfc("\u0301\u0301a") == "\u0301\u0301a");
  CHECK(nfc("\u1e9b\u0323") == "\u1e9b\u0323");
  CHECK(nfc("\U0001d15e") == "\U0001d157\U0001d165");
}

TEST_CASE("Utf8Stream: any cut gives the same text") {
  const std::string bytes =
      "a\u00e9\u6c34\U0001F600\xC3(\xE2\x82\xF0\x9F\x98x\xED\xA0\x80\xFF\xF4\x90z\xE2\x82";
  // One U+FFFD for each maximal subpart.
  const std::string expected =
      "a\u00e9\u6c34\U0001F600\uFFFD(\uFFFD\uFFFDx\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDz\uFFFD";
  for (size_t i = 0; i <= bytes.size(); ++i) {
    for (size_t j = i; j <= bytes.size(); ++j) {
      Utf8Stream s;
      std::string out = s.push(bytes.substr(0, i));
      out += s.push(bytes.substr(i, j - i));
      out += s.push(bytes.substr(j));
      CHECK(out + s.finish() == expected);
    }
  }
  Utf8Stream s;
  CHECK(s.push("\xE6\xB0").empty());
  CHECK(s.push("\xB4") == "\u6c34");
  CHECK(s.finish().empty());
}
