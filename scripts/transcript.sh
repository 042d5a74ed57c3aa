#!/bin/sh
# Asks the default model ten things and prints docs/transcript.md. Usage: scripts/transcript.sh > docs/transcript.md
# Greedy and in float arithmetic of fixed order, so the answers are the same on every machine and thread count, and with drafts.
set -eu
cd "$(dirname "$0")/.."
carat=build/release/apps/carat
model=$(scripts/default-model.sh)
drafter=$(scripts/default-model.sh drafter)
limit=200
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

tool='{"type":"function","function":{"name":"get_weather","description":"Get the current weather for a city","parameters":{"type":"object","properties":{"city":{"type":"string","description":"City name"}},"required":["city"]}}}'
call='{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"get_weather","arguments":{"city":"Lisbon"}}}]}'
ask='{"role":"user","content":"What is the weather in Lisbon?"}'

# answer COMMAND-LINE NOTE: the command, what it printed, whether the model ended by itself.
answer() {
  shown=$1
  note=$2
  shift 2
  "$carat" run -m "$model" ${drafter:+-md "$drafter" --spec auto} --temp 0 -n $limit --timings "$@" >"$tmp/out" 2>"$tmp/err"
  made=$(sed -n 's/.*generated \([0-9]*\) in.*/\1/p' "$tmp/err")
  [ -n "$made" ] || { cat "$tmp/err" >&2; exit 1; }
  number=$((number + 1))
  printf '\n## %d. %s\n\n    %s\n\n' $number "$note" "$shown"
  printf '````text\n%s\n````\n' "$(cat "$tmp/out")"
  if [ "$made" -lt $limit ]; then
    printf '\n%d tokens, ended by itself.\n' "$made"
  else
    printf '\nDid not end: cut after %d tokens.\n' "$made"
  fi
}
say() { # NOTE TEXT [flags]
  note=$1
  text=$2
  shift 2
  answer "carat run -m MODEL --temp 0${*:+ $*} -p '$text'" "$note" -p "$text" "$@"
}
chat() { # NOTE MESSAGES: a conversation with the tool declared, through the model's own template
  printf '{"messages":[%s],"tools":[%s]}' "$2" "$tool" >"$tmp/chat.json"
  "$carat" eval render -m "$model" --messages "$tmp/chat.json" >"$tmp/prompt"
  answer "carat eval render -m MODEL --messages chat.json | carat run -m MODEL --temp 0 --raw --special" "$1" --raw --special -f "$tmp/prompt"
}

number=0
cat <<END
# Ten requests to the default model

What \`$(basename "$model")\` answers, greedy, as it is: made by \`scripts/transcript.sh\`, drafting with
\`$(basename "$drafter")\` as \`./start\` does, which changes the time it takes and nothing else. It is a model of 42 million parameters;
[its page](../models/carat-demo/README.md) says what it can and cannot do.
END
say "Who it is, in a whole sentence" "Who are you?"
say "A line repeated exactly as often as asked" "Repeat this line six times: The lighthouse keeper counts 17 green boats."
say "An identifier copied exactly" 'Repeat exactly: kTableIndex_42 = parse_row("/var/log/x9.txt")'
say "A fact from the request itself: the animal is right, the name is not" "Nora lives in Prague. Nora likes the color green. Nora has a pet owl. What pet does Nora have?"
say "Traditional Chinese, characters intact" "請把這句話重複三次：今天的月亮很圓。"
say "Translation" "請翻譯成英文：我的朋友在公園裡喝茶。"
say "Code" "Write a Python function called add_numbers that adds two numbers."
chat "A declared tool called with the right argument (message: What is the weather in Lisbon?)" "$ask"
chat "The tool's result (\`21C, sunny\`) put into words" "$ask,$call,{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"21C, sunny\"}"
say "Free text, which it cannot do: it wanders and loops" "Tell me a short story about a fox."
