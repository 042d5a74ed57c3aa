#include "text/chat/qwen.h"

#include <doctest/doctest.h>

#include <random>

#include "base/error.h"
#include "base/file.h"
#include "text/chat/marks.h"
#include "text/jinja/jinja.h"

using namespace carat;

namespace {

const std::string kData = CARAT_TEST_DATA "/templates/";

std::string joined(const std::vector<ChatDelta>& deltas) {
  static const char* const kNames[] = {"content", "thinking", "name", "arguments"};
  std::string out;
  const ChatDelta* last = nullptr;
  for (const ChatDelta& d : deltas) {
    if (d.kind == ChatDelta::Kind::tool_end) continue;
    if (!last || last->kind != d.kind || last->index != d.index)
      out += fmt::format("{}{}{}: ", last ? "\n" : "", kNames[static_cast<int>(d.kind)],
                         d.kind >= ChatDelta::Kind::tool_name ? std::to_string(d.index) : "");
    out += d.text;
    last = &d;
  }
  return out;
}

// For a model that spells its tags, so that they are cut as well.
std::unique_ptr<ChatParser> qwen_parser(std::string_view prompt) {
  const Json tools = Json::parse(R"([
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
      "a": {"type": "integer"}, "b": {"type": "number"}, "note": {"type": "string"}, "deep": {"type": "object"},
      "on": {"type": "boolean"}, "list": {"type": "array"}, "maybe": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}},
    {"type": "function", "function": {"name": "stop"}}, {"type": "function", "function": {"name": "write"}}])");
  return with_spelled_marks(make_qwen_parser(prompt, {tools, nullptr}),
                            {"<think>", "</think>", "<tool_call>", "</tool_call>"});
}

template <class Next>
std::string parse(std::string_view text, std::string_view prompt, Next&& next) {
  const auto parser = qwen_parser(prompt);
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
  const std::string whole = parse(text, prompt, [] { return size_t{1} << 30; });
  // However it is cut, it says the same.
  CHECK(parse(text, prompt, [] { return size_t{1}; }) == whole);
  std::mt19937 rng(1);
  for (int i = 0; i < 20; ++i) CHECK(parse(text, prompt, [&] { return 1 + rng() % 9; }) == whole);
  return whole;
}

}  // namespace

TEST_CASE("native rendering is the published template's") {
  // The template of the family that the test data has is a later one: without its effort instructions, and
  // told what to do with older thoughts, it renders the same.
  const JinjaTemplate jinja(read_file(kData + "jinja/qwen38_chat_template.jinja"));
  const Json all = Json::parse(read_file(kData + "conversations.json"));
  int compared = 0;
  for (const auto& [name, conversation] : all.items())
    for (const bool thinking : {false, true})
      for (const bool preserve : {false, true}) {
        CAPTURE(name);
        ChatInput in;
        in.messages = conversation["messages"];
        if (conversation.contains("tools")) in.tools = conversation["tools"];
        in.think = thinking;
        in.add_generation_prompt = conversation.value("add_generation_prompt", true);
        in.extra = {{"preserve_thinking", preserve}, {"reasoning_effort", "medium"}};
        ChatInput normal;
        try {
          normal = normalize_chat(in, false);
        } catch (const Error&) {
          continue;
        }
        Json variables = normal.extra;
        variables["messages"] = normal.messages;
        if (!normal.tools.is_null()) variables["tools"] = normal.tools;
        variables["enable_thinking"] = thinking;
        variables["add_generation_prompt"] = normal.add_generation_prompt;
        std::string want, got;
        try {
          want = jinja.render(variables);
        } catch (const Error&) {
          CHECK_THROWS_AS(render_qwen(normal), Error);
          continue;
        }
        got = render_qwen(normal);
        // An empty system message: the later template leaves its turn out.
        if (want != got && normal.messages[0]["content"] == "" && normal.messages[0]["role"] == "system")
          continue;
        CHECK(got == want);
        ++compared;
      }
  CHECK(compared > 20);
  MESSAGE(compared << " renders compared");
}

TEST_CASE("reasoning inside the content is told apart; older thoughts are dropped") {
  ChatInput in;
  in.messages = Json::parse(R"([{"role":"user","content":" hi "},
    {"role":"assistant","content":"<think>\nold\n</think>\n\nHello."},{"role":"user","content":"2+2?"},
    {"role":"assistant","content":"<think>\nfour\n</think>\n\n4"}])");
  in.add_generation_prompt = false;
  CHECK(render_qwen(in) ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n2+2?<|im_"
        "end|>\n"
        "<|im_start|>assistant\n<think>\nfour\n</think>\n\n4<|im_end|>\n");
}

TEST_CASE("what cannot be rendered says where") {
  const auto error = [](const char* messages) {
    ChatInput in;
    in.messages = Json::parse(messages);
    try {
      return "rendered: " + make_chat_format("qwen35", "")->render(in);
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  CHECK(error("[]").find("messages") == 0);
  CHECK(error(R"([{"role":"system","content":"a"}])").find("no question") != std::string::npos);
  CHECK(error(R"([{"role":"user","content":"a"},{"role":"system","content":"b"}])").find("messages[1]") == 0);
}

TEST_CASE("thoughts, content and calls of a stream") {
  const std::string open = "<|im_start|>assistant\n<think>\n";
  CHECK(parse("Let me see.\n</think>\n\nFour.\n", open) == "thinking: Let me see.\ncontent: Four.\n");
  CHECK(parse("<think>\nhm</think>ok", open) == "thinking: hm\ncontent: ok");
  CHECK(parse("never closed \n", open) == "thinking: never closed");
  CHECK(parse("Plain <b>text</b> & 1 < 2") == "content: Plain <b>text</b> & 1 < 2");
  CHECK(parse("a</think>b", "<think>\n\n</think>\n\n") == "content: a</think>b");
  CHECK(parse("I add.\n\n<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=note>\nx "
              "\"y\"\nz\n"
              "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=stop>\n</function>\n</"
              "tool_call>") ==
        "content: I add.\nname0: add\narguments0: {\"a\": 2, \"note\": \"x \\\"y\\\"\\nz\"}\nname1: "
        "stop\narguments1: {}");
  // A call inside the thought ends it.
  CHECK(parse("so\n<tool_call>\n<function=f>\n</function>\n</tool_call>", open) ==
        "thinking: so\nname0: f\narguments0: {}");
}

TEST_CASE("arguments have the types that the tools declare") {
  const auto call = [](const std::string& parameters) {
    const std::string all = parse("<tool_call>\n<function=add>\n" + parameters + "</function>\n</tool_call>");
    const size_t at = all.find("arguments0: ");
    REQUIRE(at != std::string::npos);
    return Json::parse(all.substr(at + 12));
  };
  const auto p = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  CHECK(call(p("a", "7") + p("b", "1.5") + p("on", "True") + p("maybe", "null")) ==
        Json::parse(R"({"a":7,"b":1.5,"on":true,"maybe":null})"));
  CHECK(call(p("deep", "{\"x\": [1, null]}") + p("list", "[]") + p("note", "12") + p("unknown", "3")) ==
        Json::parse(R"({"deep":{"x":[1,null]},"list":[],"note":"12","unknown":"3"})"));
  CHECK(call(p("a", "seven")) == Json::parse(R"({"a":"seven"})"));
  CHECK(call(p("note", "</parameter")) == Json::parse(R"({"note":"</parameter"})"));
  CHECK(call(p("note", "if a < b:\n  </function>\n  pass")) ==
        Json::parse(R"({"note":"if a < b:\n  </function>\n  pass"})"));
  CHECK(call(p("note", "")) == Json::parse(R"({"note":""})"));
}

TEST_CASE("damaged calls lose nothing and crash nothing") {
  CHECK(parse("<tool_call>\n<function=f>\n<parameter=x>\nabc\n</function>\n</tool_call>") ==
        "name0: f\narguments0: {\"x\": \"abc\"}");
  CHECK(parse("<tool_call>\n<function=f>\n<parameter=x>\nab") == "name0: f\narguments0: {\"x\": \"ab\"}");
  CHECK(parse("<tool_call>\n<function=f>") == "name0: f\narguments0: {}");
  CHECK(parse("<tool_call>hello</tool_call>") == "content: <tool_call>hello</tool_call>");
  CHECK(parse("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>done") ==
        "name0: f\narguments0: {\"a\":1}\ncontent: done");
  CHECK(parse("<tool_call>\n{broken\n</tool_call>") == "content: <tool_call>\n{broken\n</tool_call>");
  std::mt19937 rng(3);
  const std::string_view pieces[] = {
      "<tool_call>", "</tool_call>", "<function=", "f>",   "\n", "<parameter=a>",   "1", "</parameter>",
      "</function>", "<think>",      "</think>",   "text", "<",  "{\"name\":\"g\"}"};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (unsigned k = rng() % 14; k > 0; --k) text += pieces[rng() % std::size(pieces)];
    CAPTURE(text);
    parse(text, i % 2 ? "<think>\n" : "");
  }
}

TEST_CASE("a forgotten end is seen by the next call's whole name") {
  CHECK(parse("<tool_call>\n<function=f>\n<parameter=a>\nx <tool_call><function=fog>") ==
        "name0: f\narguments0: {\"a\": \"x <tool_call><function=fog>\"}");
  CHECK(
      parse("<tool_call>\n<function=f>\n<parameter=a>\nx <tool_call><function=g>\n</function></tool_call>") ==
      "name0: f\narguments0: {\"a\": \"x \"}\nname1: g\narguments1: {}");
}

TEST_CASE("texts are passed on while they come") {
  const auto parser = qwen_parser("");
  parser->push("<tool_call>\n<function=write>\n<parameter=body>\n");
  CHECK(joined(parser->push("first line\nsecond")) == "arguments0: first line\\nsecond");
  CHECK(joined(parser->push(" line\n</para")) == "arguments0:  line");
  CHECK(joined(parser->push("meter>\n</function>\n</tool_call>")) == "arguments0: \"}");
}
