#include "serve/api/anthropic_context.h"

#include <algorithm>
#include <set>

#include "serve/api/refusals.h"

namespace carat {
namespace {

constexpr const char* kEdits = "context_management.edits";
constexpr const char* kCleared = "[This result was cleared to save context.]";
constexpr int64_t kMost = int64_t{1} << 40;

using CountTokens = std::function<int64_t(const Json& chat)>;

// A call of a tool in the history, and where its result stands.
struct ToolUsed {
  std::string name;
  size_t message = 0, call = 0, result = 0;
};

// Calls that have been answered, oldest first.
std::vector<ToolUsed> tools_used(const Json& messages) {
  std::vector<ToolUsed> open, out;
  std::vector<std::string> ids;  // of `open`
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& m = messages[i];
    for (size_t k = 0; m.contains("tool_calls") && k < m["tool_calls"].size(); ++k) {
      const Json& call = m["tool_calls"][k];
      ids.push_back(call["id"]);
      open.push_back({call["function"]["name"], i, k, 0});
    }
    if (m["role"] != "tool") continue;
    const auto id = std::find(ids.begin(), ids.end(), m["tool_call_id"].get_ref<const std::string&>());
    if (id == ids.end()) continue;
    const auto used = open.begin() + (id - ids.begin());
    used->result = i;
    out.push_back(*used);
    open.erase(used);
    ids.erase(id);
  }
  return out;
}

// {"type": one of `types`, "value": N}
struct Amount {
  std::string type;
  int64_t value = 0;
};
Amount amount_of(const Fields& edit, const char* name, std::initializer_list<std::string_view> types,
                 Amount otherwise) {
  const Json* given = edit.find(name);
  if (!given) return otherwise;
  const std::string expected =
      fmt::format("{{\"type\": \"{}\", \"value\": N}}", fmt::join(types, "\" or \""));
  if (!given->is_object()) edit.fail(name, expected);
  const Fields f(*given, fmt::format("{}.{}.", kEdits, name));
  const std::string type = f.get_string("type", "");
  if (std::find(types.begin(), types.end(), type) == types.end()) edit.fail(name, expected);
  if (!f.find("value")) f.fail("value", "a number");
  return {type, f.get_int("value", 0, 0, kMost)};
}

std::set<std::string> names_in(const Fields& edit, const char* name) {
  std::set<std::string> out;
  const Json* given = edit.find(name);
  if (!given) return out;
  if (!given->is_array()) edit.fail(name, "an array of names of tools");
  for (const Json& n : *given) {
    if (!n.is_string()) edit.fail(name, "made of names of tools");
    out.insert(n.get<std::string>());
  }
  return out;
}

// clear_tool_uses_20250919.
class ToolUseClearing {
 public:
  explicit ToolUseClearing(const Fields& edit)
      : trigger_(amount_of(edit, "trigger", {"input_tokens", "tool_uses"}, {"input_tokens", 100'000})),
        kept_(amount_of(edit, "keep", {"tool_uses"}, {"tool_uses", 3}).value),
        at_least_(amount_of(edit, "clear_at_least", {"input_tokens"}, {"input_tokens", 0}).value),
        excluded_(names_in(edit, "exclude_tools")) {
    const Json* inputs = edit.find("clear_tool_inputs");
    if (inputs && inputs->is_boolean())
      all_inputs_ = inputs->get<bool>();
    else
      inputs_ = names_in(edit, "clear_tool_inputs");
  }

  // What it did; null: nothing.
  Json apply(Json& chat, const CountTokens& tokens) const {
    std::vector<ToolUsed> used = tools_used(chat["messages"]);
    const auto uses = static_cast<int64_t>(used.size());
    if (trigger_.type == "tool_uses" && uses <= trigger_.value) return nullptr;
    used.resize(static_cast<size_t>(std::max<int64_t>(0, uses - kept_)));
    std::erase_if(used, [&](const ToolUsed& u) { return excluded_.contains(u.name); });
    if (used.empty()) return nullptr;
    const int64_t before = tokens(chat);
    if (trigger_.type == "input_tokens" && before <= trigger_.value) return nullptr;
    Json shorter = chat;
    for (const ToolUsed& u : used) clear(shorter["messages"], u);
    const int64_t cleared = before - tokens(shorter);
    if (cleared <= 0 || cleared < at_least_) return nullptr;  // nothing is won
    chat = std::move(shorter);
    return {{"cleared_tool_uses", used.size()}, {"cleared_input_tokens", cleared}};
  }

 private:
  void clear(Json& messages, const ToolUsed& u) const {
    messages[u.result]["content"] = kCleared;
    if (all_inputs_ || inputs_.contains(u.name))
      messages[u.message]["tool_calls"][u.call]["function"]["arguments"] = Json::object();
  }

  Amount trigger_;
  int64_t kept_, at_least_;
  std::set<std::string> excluded_, inputs_;
  bool all_inputs_ = false;
};

// clear_thinking_20251015: thoughts of all turns that have some but the last few are forgotten.
Json clear_thoughts(Json& chat, const Fields& edit, const CountTokens& tokens) {
  const Json* keep = edit.find("keep");
  if (keep && *keep == "all") return nullptr;
  if (keep && !keep->is_object()) edit.fail("keep", "\"all\", or an object with a number of turns");
  int64_t kept = keep ? Fields(*keep, fmt::format("{}.keep.", kEdits)).get_int("value", 1, 0) : 1;
  Json shorter = chat;
  Json& messages = shorter["messages"];
  int64_t turns = 0;
  for (size_t i = messages.size(); i-- > 0;)
    if (messages[i].contains("reasoning_content") && kept-- <= 0) {
      messages[i].erase("reasoning_content");
      ++turns;
    }
  if (turns == 0) return nullptr;
  const int64_t cleared = tokens(chat) - tokens(shorter);
  chat = std::move(shorter);
  return {{"cleared_thinking_turns", turns}, {"cleared_input_tokens", std::max<int64_t>(0, cleared)}};
}

Json apply_edit(Json& chat, const Json& edit, const CountTokens& tokens) {
  if (!edit.is_object()) must_be(kEdits, "made of objects");
  const Fields f(edit, fmt::format("{}.", kEdits));
  const std::string type = f.get_string("type", "");
  Json done;
  if (type.starts_with("clear_tool_uses_"))
    done = ToolUseClearing(f).apply(chat, tokens);
  else if (type.starts_with("clear_thinking_"))
    done = clear_thoughts(chat, f, tokens);
  else
    throw ApiError(400, fmt::format("context_management: {} is not supported; shorten the messages", type),
                   "context_management");
  if (done.is_null()) return done;
  Json out = {{"type", type}};
  out.update(done);
  return out;
}

}  // namespace

ContextEdits manage_context(Json& chat, const Json& wishes, const CountTokens& tokens) {
  ContextEdits out;
  if (!wishes.is_null() && !wishes.is_object()) must_be("context_management", "an object");
  const Json* edits = wishes.is_object() ? Fields(wishes).find("edits") : nullptr;
  if (!edits) return out;
  if (!edits->is_array()) must_be(kEdits, "an array");
  out.asked = true;
  for (const Json& edit : *edits) {
    Json done = apply_edit(chat, edit, tokens);
    if (!done.is_null()) out.applied.push_back(std::move(done));
  }
  return out;
}

}  // namespace carat
