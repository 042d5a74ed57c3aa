#include "text/chat/chat.h"

#include <doctest/doctest.h>

#include <random>

#include "base/error.h"
#include "base/file.h"
#include "text/chat/gemma.h"
#include "text/chat/marks.h"
#include "text/jinja/jinja.h"

using namespace carat;

namespace {

const std::string kData = CARAT_TEST_DATA "/templates/";
const char* const kTemplates[] = {"gemma4_e2b_chat_template.jinja",
                                  "gemma4_31b_chat_template.jinja"};  // [empty thought]

ChatInput input_of(const Json& conversation) {
  ChatInput in;
  in.messages = conversation["messages"];
  if (conversation.contains("tools")) in.tools = conversation["tools"];
  in.think = conversation.value("enable_thinking", false);
  in.add_generation_prompt = conversation.value("add_generation_prompt", true);
  in.bos = "<bos>";
  return in;
}

std::string error_of(const Json& messages, const Json& tools = nullptr) {
  ChatInput in;
  in.messages = messages;
  in.tools = tools;
  try {
    return "rendered: " + make_chat_format("gemma4", "")->render(in);
  } catch (const Error& e) {
    return e.what();
  }
}

// The deltas, those of one kind and index joined, in order, one a line.
std::string joined(const std::vector<ChatDelta>& deltas) {
  static const char* const kNames[] = {"content", "thinking", "name", "arguments"};
  std::string out;
  const ChatDelta* last = nullptr;
  for (const ChatDelta& d : deltas) {
    if (d.kind == ChatDelta::Kind::tool_end) continue;
    if (!last || last->kind != d.kind || last->index != d.index) {
      out += fmt::format("{}{}{}: ", last ? "\n" : "", kNames[static_cast<int>(d.kind)],
                         d.kind >= ChatDelta::Kind::tool_name ? std::to_string(d.index) : "");
    }
    out += d.text;
    last = &d;
  }
  return out;
}

// For a model that spells its tags, so that they are cut as well.
std::unique_ptr<ChatParser> gemma_parser(std::string_view prompt) {
  Json tools = Json::array();
  for (const char* name : {"f", "g", "write", "get_weather", "get_time"})
    tools.push_back({{"type", "function"}, {"function", {{"name", name}}}});
  return with_spelled_marks(
      make_gemma4_parser(prompt, {tools, nullptr}),
      {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<|\"|>"});
}

template <class NextCut>
std::string parse(std::string_view text, std::string_view prompt, NextCut&& next) {
  const auto parser = gemma_parser(prompt);
  std::vector<ChatDelta> all;
  const auto take = [&](const std::vector<ChatDelta>& deltas) {
    all.insert(all.end(), deltas.begin(), deltas.end());
  };
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min(next(), text.size() - at);
    take(parser->push(text.substr(at, n)));
    at += n;
  }
  take(parser->finish(false));
  return joined(all);
}

std::string parse(std::string_view text, std::string_view prompt = "") {
  return parse(text, prompt, [] { return size_t{1} << 30; });
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  size_t below(size_t n) { return engine_() % n; }
  bool chance(size_t percent) { return below(100) < percent; }
  template <class T, size_t N>
  const T& of(const T (&options)[N]) {
    return options[below(N)];
  }

 private:
  std::mt19937 engine_;
};

// ---- random conversations, wide enough to reach every branch of the published template

Json random_value(Random& r, int depth) {
  static const char* const kTexts[] = {"",           "x",     " a b ",  "\u4f60\u597d",
                                       "it's \"q\"", "{k:1}", "<|\"|>", "line\nline"};
  switch (r.below(depth > 2 ? 6 : 8)) {
    case 0: return nullptr;
    case 1: return r.chance(50);
    case 2: return static_cast<int>(r.below(2000)) - 1000;
    case 3: return static_cast<double>(r.below(1000)) / 8 + 1e16 * static_cast<double>(r.below(2));
    case 4:
    case 5: return r.of(kTexts);
    case 6: {
      Json out = Json::array();
      for (size_t n = r.below(4); n > 0; --n) out.push_back(random_value(r, depth + 1));
      return out;
    }
    default: {
      static const char* const kKeys[] = {"b", "A", "a", "Zeta", "key_1", "\u00c9", "\u00e9t\u00e9"};
      Json out = Json::object();
      for (size_t n = r.below(4); n > 0; --n) out[r.of(kKeys)] = random_value(r, depth + 1);
      return out;
    }
  }
}

Json random_schema(Random& r, int depth) {
  static const char* const kTypes[] = {"string", "integer", "array", "object", "boolean", "Number"};
  Json out = Json::object();
  if (r.chance(95)) out["type"] = r.of(kTypes);
  if (r.chance(50)) out["description"] = r.chance(80) ? "some text" : "";
  if (r.chance(20)) out["enum"] = Json::array({"one", "two", 3});
  if (r.chance(15)) out["nullable"] = r.chance(70);
  if (r.chance(15)) out["default"] = random_value(r, 2);
  if (r.chance(30)) out["required"] = Json::array({"p", "q"});
  if (depth < 3 && r.chance(50)) {
    Json items = random_schema(r, depth + 1);
    if (r.chance(20)) items["type"] = Json::array({"string", "null"});
    out["items"] = r.chance(90) ? items : Json(nullptr);
  }
  if (depth < 3 && r.chance(50)) {
    static const char* const kNames[] = {"p", "Q", "r_s", "type"};
    Json properties = Json::object();
    for (size_t n = r.below(4); n > 0; --n) properties[r.of(kNames)] = random_schema(r, depth + 1);
    out["properties"] = properties;
  }
  return out;
}

Json random_content(Random& r, bool tool) {
  static const char* const kTexts[] = {"Hi",
                                       "  spaced \n",
                                       "",
                                       "a<|channel>thought\nx<channel|>b",
                                       "x<channel|>y",
                                       "\u3000\u4f60\u597d\u00a0"};
  if (r.chance(70)) return r.of(kTexts);
  if (r.chance(20)) return nullptr;
  static const char* const kMedia[] = {"image", "image_url", "audio", "input_audio", "video", "other"};
  Json out = Json::array();
  for (size_t n = r.below(4); n > 0; --n) {
    if (r.chance(60))
      out.push_back({{"type", "text"}, {"text", r.of(kTexts)}});
    else
      out.push_back({{"type", r.of(kMedia)}});
  }
  if (tool && r.chance(10)) return 5;
  return out;
}

Json random_conversation(Random& r) {
  static const char* const kRoles[] = {"user", "assistant", "assistant", "tool", "tool"};
  static const char* const kIds[] = {"1", "2", "3"};
  Json out = {{"messages", Json::array()}};
  if (r.chance(40)) {
    Json system = {{"role", r.chance(80) ? "system" : "developer"}, {"content", random_content(r, false)}};
    if (system["content"].is_array()) system["content"] = Json::array({{{"type", "text"}, {"text", " a "}}});
    out["messages"].push_back(system);
  }
  for (size_t n = r.below(7); n > 0; --n) {
    Json m = {{"role", r.of(kRoles)}};
    if (r.chance(95)) m["content"] = random_content(r, m["role"] == "tool");
    if (m["role"] == "tool") {
      if (r.chance(80)) m["tool_call_id"] = r.of(kIds);
      if (r.chance(30)) m["name"] = "named";
    }
    if (m["role"] == "assistant") {
      if (r.chance(30)) m[r.chance(50) ? "reasoning" : "reasoning_content"] = r.chance(80) ? "because" : "";
      if (r.chance(50)) m["tool_calls"] = Json::array();
      for (size_t k = r.below(3); m.contains("tool_calls") && k > 0; --k) {
        Json arguments = Json::object();
        for (size_t j = r.below(3); j > 0; --j) arguments[r.chance(50) ? "x" : "Y"] = random_value(r, 0);
        m["tool_calls"].push_back(
            {{"id", r.of(kIds)},
             {"function",
              {{"name", "f" + std::to_string(k)}, {"arguments", r.chance(90) ? arguments : Json(nullptr)}}}});
      }
      if (r.chance(10))
        m["tool_responses"] =
            Json::array({{{"name", r.chance(50) ? "g" : ""}, {"response", random_value(r, 0)}}});
    }
    out["messages"].push_back(m);
  }
  if (r.chance(50)) out["tools"] = Json::array();
  for (size_t n = r.below(3); out.contains("tools") && n > 0; --n) {
    Json function = {{"name", "tool"}};
    if (r.chance(80)) function["description"] = " what it does ";
    if (r.chance(80)) function["parameters"] = random_schema(r, 0);
    if (r.chance(15)) function["response"] = random_schema(r, 3);
    out["tools"].push_back({{"type", "function"}, {"function", function}});
  }
  out["enable_thinking"] = r.chance(40);
  out["add_generation_prompt"] = r.chance(80);
  if (r.chance(30)) out["preserve_thinking"] = r.chance(80);
  return out;
}

}  // namespace

TEST_CASE("whether a model thinks untold is its template's choice") {
  struct Family {
    const char *arch, *file;  // "": the format that is built in
    bool thinks;
  };
  for (const Family& f : {Family{"gemma4", "", false}, Family{"qwen35", "", true},
                          Family{"qwen35moe", "", true}, Family{"gemma4", "gemma4_e2b", false},
                          Family{"gemma4", "gemma4_31b", false}, Family{"qwen35", "qwen38", true},
                          Family{"other", "nemotron35", true}, Family{"other", "laguna_v8", false}}) {
    CAPTURE(f.arch);
    CAPTURE(f.file);
    const std::string file = kData + "jinja/" + f.file + "_chat_template.jinja";
    const auto format = make_chat_format(f.arch, *f.file ? read_file(file) : std::string());
    CHECK(format->thinks_by_default() == f.thinks);
    ChatInput in;
    in.messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
    const std::string untold = format->render(in);
    in.think = f.thinks;
    CHECK(format->render(in) == untold);
    in.think = !f.thinks;
    CHECK(format->render(in) != untold);
  }
  // A template that nothing can turn on or off, and one that cannot render a question.
  CHECK_FALSE(make_chat_format("qwen35", "{{ messages[0].content }}")->thinks_by_default());
  CHECK_FALSE(make_chat_format("qwen35", "{{ raise_exception('no') }}")->thinks_by_default());
}

TEST_CASE("Gemma 4 without a template renders what the published templates render") {
  const Json conversations = Json::parse(read_file(kData + "conversations.json"));
  const Json expected = Json::parse(read_file(kData + "rendered.json"));
  for (const bool empty_thought : {false, true}) {
    for (const auto& [name, result] : expected[kTemplates[empty_thought]].items()) {
      CAPTURE(name);
      CHECK(render_gemma4(input_of(conversations[name]), empty_thought) == result["text"].get<std::string>());
    }
  }
}

TEST_CASE("Gemma 4 without a template renders random conversations as the templates do") {
  const JinjaTemplate templates[] = {JinjaTemplate(read_file(kData + "jinja/" + kTemplates[0])),
                                     JinjaTemplate(read_file(kData + "jinja/" + kTemplates[1]))};
  int rendered = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    Random r(seed);
    Json conversation = random_conversation(r);
    ChatInput in = input_of(conversation);
    in.extra = conversation;
    conversation["bos_token"] = "<bos>";
    const bool empty_thought = r.chance(50);
    std::string wanted;
    bool refused = false;
    try {
      wanted = templates[empty_thought].render(conversation);
    } catch (const Error&) {
      refused = true;
    }
    CAPTURE(seed);
    CAPTURE(conversation.dump());
    if (refused) continue;
    ++rendered;
    REQUIRE(render_gemma4(in, empty_thought) == wanted);
  }
  CHECK(rendered > 2000);
}

TEST_CASE("a chat format takes what OpenAI's API allows") {
  const std::string tpl = read_file(kData + "jinja/" + kTemplates[1]);
  const Json messages = Json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": "Let me look.", "tool_calls": [
      {"id": "7", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\", \"days\": 2}"}}]},
    {"role": "tool", "tool_call_id": "7", "content": "3C"}])");
  ChatInput in;
  in.messages = messages;
  in.bos = "<bos>";
  const std::string wanted =
      "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\nLet me "
      "look.<|tool_call>call:get_weather{city:<|\"|>Oslo<|\"|>,days:2}"
      "<tool_call|><|tool_response>response:get_weather{value:<|\"|>3C<|\"|>}<tool_response|>";
  CHECK(make_chat_format("gemma4", "")->render(in) == wanted);
  CHECK(make_chat_format("gemma4", tpl)->render(in) == wanted);
  // Numbers have the digits that they were written with, also where no 64 bits hold them; strings stay.
  in.messages[1]["tool_calls"][0]["function"]["arguments"] =
      R"({"a": [-12345678901234567890123], "b": "\"12345678901234567890123", "c": 18446744073709551615, "#": "##1"})";
  const std::string numbers =
      "{#:<|\"|>##1<|\"|>,a:[-12345678901234567890123],b:<|\"|>\"12345678901234567890123<|\"|>,"
      "c:18446744073709551615}";
  CHECK(make_chat_format("gemma4", "")->render(in).find("get_weather" + numbers) != std::string::npos);
  CHECK(make_chat_format("gemma4", tpl)->render(in).find("get_weather" + numbers) != std::string::npos);
  CHECK(make_chat_format("qwen35", "")
            ->render(in)
            .find("<parameter=a>\n[-12345678901234567890123]\n</parameter>") != std::string::npos);
  in.messages[1]["tool_calls"][0]["function"]["arguments"] = R"({"a": 1234567890123456789012-1})";
  CHECK_THROWS_AS(make_chat_format("gemma4", "")->render(in), Error);
  in.messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  const std::string plain = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n";
  CHECK(make_chat_format("gemma4", "")->render(in) == plain + "<|channel>thought\n<channel|>");
  CHECK(make_chat_format("gemma4", "", {.empty_thought = false})->render(in) == plain);
  CHECK(make_chat_format("gemma4", read_file(kData + "jinja/" + kTemplates[0]))->render(in) == plain);
  CHECK_THROWS_AS(make_chat_format("bloom", ""), Error);
  in.extra = {{"greeting", "Yo"}};
  const auto other = make_chat_format("bloom", "{{ greeting }} {{ messages[0].content }}{{ eos_token }}");
  CHECK(other->render(in) == "Yo Hi");
  CHECK_FALSE(other->wants_special());
  const auto parser = other->parser("", {});
  CHECK(joined(parser->push("<|channel>a\xf0\x9f")) == "content: <|channel>a");
  CHECK(joined(parser->push("\x91\x8b")) == "content: \U0001F44B");
}

TEST_CASE("messages that cannot be rendered are named") {
  const Json user = {{"role", "user"}, {"content", "a"}};
  const auto call = [](const Json& arguments) {
    return Json{{"role", "assistant"},
                {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}};
  };
  CHECK(error_of(nullptr).find("messages: must be an array") == 0);
  CHECK(error_of(Json::array()).find("messages:") == 0);
  CHECK(error_of({user, 5}).find("messages[1]:") == 0);
  CHECK(error_of({user, {{"content", "x"}}}).find("messages[1].role:") == 0);
  CHECK(error_of({user, {{"role", "robot"}, {"content", "x"}}}).find("messages[1].role: 'robot'") == 0);
  CHECK(error_of({{{"role", "user"}}}).find("messages[0].content: missing") == 0);
  CHECK(error_of({{{"role", "user"}, {"content", {{{"type", "smell"}}}}}})
            .find("messages[0].content[0].type:") == 0);
  CHECK(error_of({user, call("{\"a\": ")}).find("messages[1].tool_calls[0].function.arguments:") == 0);
  CHECK(error_of({user, call("[1]")}).find("messages[1].tool_calls[0].function.arguments:") == 0);
  CHECK(error_of({user, call(std::string(100'000, '['))})
            .find("messages[1].tool_calls[0].function.arguments:") == 0);
  CHECK(error_of({user, call("")}).find("rendered: ") == 0);
  CHECK(error_of({user, {{"role", "tool"}, {"content", "x"}}}).find("messages[1]: a tool result") == 0);
  CHECK(error_of({user, call("{}"), {{"role", "tool"}, {"tool_call_id", "9"}, {"content", "x"}}})
            .find("messages[2].tool_call_id:") == 0);
  CHECK(error_of({user, call("{}"), {{"role", "tool"}, {"content", "x"}}}).find("response:f{") !=
        std::string::npos);
  CHECK(error_of({user}, {{{"type", "function"}}}).find("tools[0].function:") == 0);
  CHECK(error_of({user}, {{{"type", "function"}, {"function", {{"name", 5}}}}})
            .find("tools[0].function.name:") == 0);
}

// tests/golden/chat_gemma4_parse.txt: cases of "== prompt's end", the answer after "--", the deltas after
// "->".
TEST_CASE("Gemma 4 answers come apart, however the bytes are cut") {
  const std::string file = read_file(CARAT_TEST_DATA "/../golden/chat_gemma4_parse.txt");
  Random r(1);
  int cases = 0;
  for (size_t at = file.find("\n== ") + 1; at != std::string::npos; ++cases) {
    const size_t next = file.find("\n== ", at), a = file.find("\n--\n", at), b = file.find("\n->\n", at);
    REQUIRE(a < b);
    REQUIRE(b < next);
    std::string prompt = file.substr(at + 3, a - at - 3);
    if (prompt.ends_with("\\n")) prompt.replace(prompt.size() - 2, 2, "\n");
    const std::string text = file.substr(a + 4, b - a - 4);
    const std::string wanted =
        file.substr(b + 4, next == std::string::npos ? file.size() - b - 5 : next - b - 4);
    at = next == std::string::npos ? next : next + 1;
    CAPTURE(text);
    CHECK(parse(text, prompt) == wanted);
    CHECK(parse(text, prompt, [] { return size_t{1}; }) == wanted);
    for (int i = 0; i < 20; ++i) CHECK(parse(text, prompt, [&] { return 1 + r.below(9); }) == wanted);
  }
  CHECK(cases >= 20);
}

TEST_CASE("random answers: the same deltas however the bytes are cut, and no text is lost") {
  static const char* const kPieces[] = {"<|channel>",
                                        "thought\n",
                                        "thought",
                                        "<channel|>",
                                        "<|tool_call>",
                                        "<tool_call|>",
                                        "<|tool_response>",
                                        "<|\"|>",
                                        "call:f{",
                                        "a:",
                                        "}",
                                        "{",
                                        "[",
                                        "]",
                                        ",",
                                        "1.5",
                                        "true",
                                        "word",
                                        " ",
                                        "\n",
                                        "  \n\n",
                                        "<",
                                        "<|",
                                        "<|tool",
                                        "<chan",
                                        "|>",
                                        "\u4f60\u597d",
                                        "\U0001F44B\U0001F3FD",
                                        "\xff",
                                        "\xe4\xbd",
                                        "call:g{x:<|\"|>y<|\"|>}<tool_call|>",
                                        "\"",
                                        "'",
                                        "\\",
                                        ":"};
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    Random r(seed);
    std::string text;
    for (size_t n = 1 + r.below(25); n > 0; --n) text += r.of(kPieces);
    const std::string prompt = r.chance(20) ? "<|turn>model\n<|channel>thought\n" : "";
    const std::string whole = parse(text, prompt);
    CAPTURE(seed);
    CAPTURE(text);
    REQUIRE(parse(text, prompt, [] { return size_t{1}; }) == whole);
    for (int i = 0; i < 3; ++i) REQUIRE(parse(text, prompt, [&] { return 1 + r.below(7); }) == whole);
  }
}

TEST_CASE("a long answer takes time in proportion") {
  std::string text = "<|channel>thought\n";
  for (int i = 0; i < 20'000; ++i) text += "some thought ";
  text += "<channel|><|tool_call>call:write{text:<|\"|>";
  for (int i = 0; i < 100'000; ++i) text += "line, with {braces}\n";
  text += "<|\"|>}<tool_call|>";
  const std::string out = parse(text, "", [] { return size_t{3}; });
  CHECK(out.size() > 2'000'000);
  CHECK(out.find("\nname0: write\narguments0: {\"text\":\"line, with {braces}\\n") != std::string::npos);
}
