"""Chats in Gemma 4's own format, as spans with a flag: does the model have to produce this span itself?

The text is what the published template (templates/gemma4.jinja, thinking off: an empty thought block opens the answer)
renders for history and prompt, followed by what the model answers. tests/test_chat_format.py holds the two together.
A chat is dict(messages=[...], tools=[...] or absent, thinking=bool); messages as in the OpenAI API, with `reasoning`.
"""
QUOTE = '<|"|>'
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"


def value(v, quote_keys=False):
    """A value in the argument notation: strings between <|"|>, bare keys (quoted in schemas)."""
    if v is None:
        return "null"
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, str):
        return QUOTE + v + QUOTE
    if isinstance(v, dict):
        key = (lambda k: QUOTE + k + QUOTE) if quote_keys else (lambda k: k)
        return "{" + ",".join(f"{key(k)}:{value(x, quote_keys)}" for k, x in ordered(v)) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join(value(x, quote_keys) for x in v) + "]"
    return str(v)


def ordered(d):
    return sorted(d.items(), key=lambda kv: kv[0].lower())


def schema_property(p):
    parts = []
    if p.get("description"):
        parts.append(f"description:{value(p['description'])}")
    kind = p["type"].upper()
    if kind == "STRING" and p.get("enum"):
        parts.append(f"enum:{value(p['enum'], True)}")
    if kind == "ARRAY" and p.get("items"):
        items = [f"{k}:{value(x.upper() if k == 'type' else x, True)}" for k, x in ordered(p["items"])]
        parts.append("items:{" + ",".join(items) + "}")
    parts.append(f"type:{value(kind)}")
    return "{" + ",".join(parts) + "}"


def declaration(tool):
    f = tool["function"]
    out = f"declaration:{f['name']}{{description:{value(f['description'])}"
    p = f.get("parameters")
    if p:
        out += ",parameters:{"
        if p.get("properties"):
            out += "properties:{" + ",".join(f"{k}:{schema_property(v)}" for k, v in ordered(p["properties"])) + "},"
        if p.get("required"):
            out += "required:[" + ",".join(value(x) for x in p["required"]) + "],"
        out += f"type:{value(p['type'].upper())}}}"
    return "<|tool>" + out + "}<tool|>"


def call(tool_call):
    f = tool_call["function"]
    return "<|tool_call>call:" + f["name"] + value(f["arguments"]) + "<tool_call|>"


def response(name, content):
    return f"<|tool_response>response:{name}{{value:{value(content)}}}<tool_response|>"


def thought(text):
    return f"<|channel>thought\n{text}\n<channel|>"


class Spans(list):
    """[(text, own)]; own: the model writes it."""

    def add(self, text, own=False):
        if text:
            self.append((text, own))

    def text(self):
        return "".join(t for t, _ in self)


def head(chat, out):
    messages, thinking = chat["messages"], chat.get("thinking", False)
    system = messages[0]["role"] == "system"
    if system or thinking or chat.get("tools"):
        out.add("<|turn>system\n" + ("<|think|>\n" if thinking else "") + (messages[0]["content"].strip() if system else "")
                + "".join(declaration(t) for t in chat.get("tools") or []) + "<turn|>\n")
    return messages[1:] if system else messages


def render(chat, complete=True):
    """The spans of a chat whose last message is the assistant's; complete: with the end of its turn.

    If the last assistant message calls a tool, the model ends with <|tool_response>, which asks for the result.
    """
    out, thinking = Spans(), chat.get("thinking", False)
    messages = head(chat, out)
    last_user = max(i for i, m in enumerate(messages) if m["role"] == "user")
    names, open_turn = {}, False
    for i, m in enumerate(messages):
        last = i == len(messages) - 1
        if m["role"] == "user":
            out.add("<|turn>user\n" + m["content"].strip() + "<turn|>\n")
            open_turn = False
        elif m["role"] == "tool":
            out.add(response(names[m["tool_call_id"]], m["content"]))
        else:
            model_message(out, m, thinking, i > last_user, last, open_turn, bool(names) and messages[i - 1]["role"] == "tool")
            for t in m.get("tool_calls") or []:
                names[t["id"]] = t["function"]["name"]
            open_turn = True
            following = messages[i + 1]["role"] if not last else None
            if m.get("tool_calls") and last:
                out.add("<|tool_response>", True)
            elif not m.get("tool_calls") and following != "assistant" and (complete or not last):
                out.add("<turn|>", True)
                out.add("\n")
    return out


def model_message(out, m, thinking, live, last, open_turn, after_tool):
    """live: after the last user message, where thoughts are kept; last: what the model is to write now."""
    if not open_turn:
        out.add("<|turn>model\n")
        if last and not thinking:
            out.add(EMPTY_THOUGHT)
    if m.get("reasoning") and live:
        if after_tool and last and thinking:              # the prompt itself opens the thought after a tool's result
            out.add("<|channel>thought\n")
            out.add(m["reasoning"] + "\n<channel|>", True)
        else:
            out.add(thought(m["reasoning"]), True)
    for t in m.get("tool_calls") or []:
        out.add(call(t), True)
    out.add((m.get("content") or "").strip(), True)
