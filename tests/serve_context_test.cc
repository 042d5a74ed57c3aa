// Anthropic's context management: what is taken out of a conversation, and how the answer tells of it.
#include <doctest/doctest.h>

#include "serve/api/anthropic.h"
#include "serve/api/anthropic_context.h"
#include "tests/serve_fixture.h"

using namespace carat;
using namespace carat::test;

namespace {

// Longer than what stands for it when it is cleared.
const std::string kResult = "a long result of a tool that has read many lines of a file and tells of them";

Json thought_turn(const std::string& thought) {
  return {{"role", "assistant"},
          {"content",
           {{{"type", "thinking"}, {"thinking", thought}, {"signature", ""}},
            {{"type", "text"}, {"text", "x"}}}}};
}

// A question, then a call and its result for each name.
Json calls(const std::vector<std::string>& names, const std::string& result = kResult) {
  Json out = user("Go");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string id = "t" + std::to_string(i);
    out.push_back(
        {{"role", "assistant"},
         {"content",
          {{{"type", "tool_use"}, {"id", id}, {"name", names[i]}, {"input", {{"path", "/srv"}}}}}}});
    out.push_back(
        {{"role", "user"},
         {"content", {{{"type", "tool_result"}, {"tool_use_id", id}, {"content", result + " " + id}}}}});
  }
  return out;
}

// A conversation with an edit: what is left of it, and what the answer tells.
struct Edited {
  Json chat;
  Json applied;
  int counted = 0;
  // Of each result: '-' cleared, 'R' as it was; behind it 'i' if the call's input is gone.
  std::string shape() const {
    std::string out;
    for (const Json& m : chat["messages"]) {
      if (m.contains("tool_calls") && m["tool_calls"][0]["function"]["arguments"].empty()) out += 'i';
      if (m["role"] == "tool") out += m["content"].get<std::string>().starts_with("a long") ? 'R' : '-';
    }
    return out;
  }
};
Edited edited(const Json& messages, const Json& edit) {
  Edited out;
  out.chat = chat_of_messages({{"messages", messages}});
  out.applied = manage_context(out.chat, {{"edits", {edit}}}, [&](const Json& chat) {
                  ++out.counted;
                  return static_cast<int64_t>(chat["messages"].dump().size());
                }).applied;
  return out;
}
Json clearing(const Json& more = Json::object()) {
  Json out = {{"type", "clear_tool_uses_20250919"}, {"trigger", {{"type", "tool_uses"}, {"value", 0}}}};
  out.update(more);
  return out;
}
Json tool_uses(int n) { return {{"type", "tool_uses"}, {"value", n}}; }
Json input_tokens(int n) { return {{"type", "input_tokens"}, {"value", n}}; }

}  // namespace

TEST_CASE("thoughts of former turns are forgotten where the client asks for that") {
  Json messages = Json::array();
  for (const char* thought : {"one", "two", "three"}) {
    messages.push_back({{"role", "user"}, {"content", "Go"}});
    messages.push_back(thought_turn(thought));
  }
  messages.push_back({{"role", "user"}, {"content", "Go on"}});
  const auto left = [&](const Json& edit) {
    std::string thoughts;
    const Edited e = edited(messages, edit);
    for (const Json& m : e.chat["messages"]) thoughts += m.value("reasoning_content", "-") + " ";
    return thoughts + (e.applied.empty() ? "" : e.applied[0]["cleared_thinking_turns"].dump());
  };
  const Json all = {{"type", "clear_thinking_20251015"}, {"keep", "all"}};
  CHECK(left(all) == "- one - two - three - ");
  CHECK(left({{"type", "clear_thinking_20251015"}}) == "- - - - - three - 2");
  CHECK(left({{"type", "clear_thinking_20251015"}, {"keep", {{"type", "thinking_turns"}, {"value", 2}}}}) ==
        "- - - two - three - 1");
  CHECK(left({{"type", "clear_thinking_20251015"}, {"keep", {{"type", "thinking_turns"}, {"value", 3}}}}) ==
        "- one - two - three - ");
  CHECK_THROWS_AS(left({{"type", "compact_20260112"}}), ApiError);
}

TEST_CASE("old results of tools are cleared, the last ones are kept") {
  const Json five = calls({"read", "search", "read", "run", "read"});
  CHECK(edited(five, clearing()).shape() == "--RRR");
  CHECK(edited(five, clearing({{"keep", tool_uses(1)}})).shape() == "----R");
  CHECK(edited(five, clearing({{"keep", tool_uses(0)}})).shape() == "-----");
  CHECK(edited(five, clearing({{"keep", tool_uses(9)}})).shape() == "RRRRR");
  CHECK(edited(five, clearing({{"exclude_tools", {"search"}}})).shape() == "-RRRR");
  CHECK(edited(five, clearing({{"keep", tool_uses(2)}, {"clear_tool_inputs", true}})).shape() == "i-i-i-RR");
  CHECK(edited(five, clearing({{"clear_tool_inputs", {"search"}}})).shape() == "-i-RRR");
  const Edited e = edited(five, clearing());
  REQUIRE(e.applied.size() == 1);
  CHECK(e.applied[0]["type"] == "clear_tool_uses_20250919");
  CHECK(e.applied[0]["cleared_tool_uses"] == 2);
  CHECK(e.applied[0]["cleared_input_tokens"] ==
        static_cast<int64_t>(chat_of_messages({{"messages", five}})["messages"].dump().size()) -
            static_cast<int64_t>(e.chat["messages"].dump().size()));
}

TEST_CASE("nothing is cleared below the trigger, nor if too little would be won") {
  const Json five = calls({"read", "search", "read", "run", "read"});
  const auto whole = static_cast<int>(chat_of_messages({{"messages", five}})["messages"].dump().size());
  const auto untouched = [&](const Json& messages, const Json& edit) {
    const Edited e = edited(messages, edit);
    CHECK(e.applied == Json::array());
    CHECK(e.chat == chat_of_messages({{"messages", messages}}));
    return e.counted;
  };
  CHECK(untouched(five, {{"type", "clear_tool_uses_20250919"}}) == 1);  // 100,000 tokens by default
  untouched(five, clearing({{"trigger", input_tokens(whole)}}));
  untouched(five, clearing({{"trigger", tool_uses(5)}}));
  untouched(five, clearing({{"clear_at_least", input_tokens(whole)}}));
  untouched(calls({"read", "read", "read", "read"}, ""), clearing());  // their placeholders are longer
  CHECK(untouched(calls({"read"}), {{"type", "clear_tool_uses_20250919"}}) ==
        0);  // no prompt is made for that
  CHECK(edited(five, clearing({{"trigger", input_tokens(whole - 1)}})).shape() == "--RRR");
  CHECK(edited(five, clearing({{"trigger", tool_uses(4)}})).shape() == "--RRR");
  CHECK(edited(five, clearing({{"clear_at_least", input_tokens(3)}})).shape() == "--RRR");
}

TEST_CASE("wrong edits are refused by name") {
  const auto why = [](const Json& wishes) -> std::string {
    Json chat = chat_of_messages({{"messages", calls({"read"})}});
    try {
      manage_context(chat, wishes, [](const Json&) { return 1; });
    } catch (const ApiError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(why({{"edits", {clearing({{"trigger", {{"type", "hours"}, {"value", 1}}}})}}}).find(".trigger") !=
        std::string::npos);
  CHECK(why({{"edits", {clearing({{"keep", 3}})}}}).find(".keep") != std::string::npos);
  CHECK(why({{"edits", {clearing({{"keep", input_tokens(3)}})}}}).find(".keep") != std::string::npos);
  CHECK(why({{"edits", {clearing({{"exclude_tools", "read"}})}}}).find(".exclude_tools") !=
        std::string::npos);
  CHECK(why({{"edits", {clearing({{"clear_tool_inputs", {1}}})}}}).find(".clear_tool_inputs") !=
        std::string::npos);
  CHECK(why({{"edits", {{{"type", "compact_20260112"}}}}}).find("compact_20260112") != std::string::npos);
  CHECK(why({{"edits", "all"}}).find("edits") != std::string::npos);
  CHECK(why("all").find("context_management") != std::string::npos);
  CHECK(why(nullptr).empty());
}

TEST_CASE("answers tell of edits, whole, as events and where tokens are counted") {
  TestServer t({.context = 1024, .sequences = 1, .prefill_chunk = 512});
  Json body = {{"max_tokens", 20}, {"messages", calls({"read", "read", "read"})}};
  const auto count = [&](const Json& asked) { return t.post("/v1/messages/count_tokens", asked).second; };
  const Json whole = count(body);
  CHECK_FALSE(whole.contains("context_management"));
  body["context_management"] = {{"edits", {clearing({{"keep", tool_uses(1)}})}}};
  const Json left = count(body);
  CHECK(left["context_management"]["original_input_tokens"] == whole["input_tokens"]);
  CHECK(left["input_tokens"] < whole["input_tokens"]);
  const int64_t cleared = whole["input_tokens"].get<int64_t>() - left["input_tokens"].get<int64_t>();
  const Json expected = {{"applied_edits",
                          {{{"type", "clear_tool_uses_20250919"},
                            {"cleared_tool_uses", 2},
                            {"cleared_input_tokens", cleared}}}}};
  t.script("Done");
  const auto [status, m] = t.post("/v1/messages", body);
  REQUIRE(status == 200);
  CHECK(m["context_management"] == expected);
  CHECK(m["usage"]["input_tokens"] == left["input_tokens"]);
  t.script("Done");
  body["stream"] = true;
  const std::string events = t.post_text("/v1/messages", body.dump()).second;
  const size_t at = events.find("event: message_delta\ndata: ") + 27;
  CHECK(Json::parse(events.substr(at, events.find('\n', at) - at))["context_management"] == expected);
}
