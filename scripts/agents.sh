#!/bin/sh
# Real coding agents (npm packages of fixed versions) against our server. On the default model: a request and an abort, of Claude
# Code and Codex a second session and a conversation gone on with, too. On a model that calls the agent's tool by heart
# (tests/agents/scripted.py): the call, whose command must run, and the conversation gone on with. No request may be refused.
# Usage: agents.sh [all | claude-code codex opencode qwen-code pi continue cline]     without a name: the first two
set -eu
cd "$(dirname "$0")/.."
. tests/serve_for.sh
agents=${*:-claude-code codex}
[ "$agents" != all ] || agents='claude-code codex opencode qwen-code pi continue cline'
# installed FOLDER PROGRAM COMMAND: by npm, as the lock file says.
installed() { [ -x "$1/node_modules/.bin/$2" ] || (cd "$1" && npm $3 --silent --no-audit --no-fund); }
installed tests/agents codex ci
bin=$PWD/tests/agents/node_modules/.bin
for agent in $agents; do
  case $agent in
    claude-code | codex) ;;
    *) installed tests/agents/more opencode 'install --no-save' ;;  # "ci" refuses: one of them lists packages that nobody published
  esac
done
more=$PWD/tests/agents/more/node_modules
[ ! -d "$more" ] || export PATH="$(echo "$more"/node-linux-*/bin):$PATH"  # some of them need a newer Node than Debian's
carat=$PWD/build/release/apps/carat
model=$PWD/$(scripts/default-model.sh)

fail() {
  echo "FAIL $*" >&2
  tail -n 20 "$log" >&2
  exit 1
}
# answers WHAT FUNCTION ARGUMENTS: it says something or its answer is cut, and the server has answered.
answers() {
  what="$agent, $1"
  shift
  before=$(served)
  by='timeout 300'
  if "$@" </dev/null >answer 2>errors; then
    [ -s answer ] || fail "$what: it says nothing: $(cat errors)"
  else
    cut || fail "$what: $(cat answer errors)"
  fi
  [ "$(served)" -gt "$before" ] || fail "$what: no request was answered: $(cat answer errors)"
}
# The demo model may talk on to the end of what it is allowed: one answer in ten. Claude Code and Codex call that an error.
cut() { grep -qE 'exceeded the .* output token maximum|Incomplete response returned, reason: max_output_tokens' answer errors; }
served() { grep -c ' POST /v1/[a-z/]* 200 ' "$log" || true; }
refused() { grep -E ' (GET|POST) /[^ ]* [45][0-9][0-9] ' "$log"; }
# aborted FUNCTION ARGUMENTS: interrupted while the server reads, it leaves nothing running.
aborted() {
  by='timeout -s INT -k 20 5'
  "$@" </dev/null >/dev/null 2>&1 || true
  for i in $(seq 100); do
    curl -sf "$URL/slots" | grep -q '"is_processing":true' || return 0
    sleep 0.1
  done
  fail "$agent: a request runs on behind its client's back"
}

# ---- how each is told of the server: docs/agents.md says the same. "$1" is the model's name.
configure_claude_code() {
  export ANTHROPIC_BASE_URL=$URL ANTHROPIC_API_KEY=test CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 CLAUDE_CODE_MAX_OUTPUT_TOKENS=40
}
configure_codex() {
  mkdir -p "$HOME/.codex"
  cat >"$HOME/.codex/config.toml" <<C
model = "$1"
model_provider = "carat"
[model_providers.carat]
name = "carat"
base_url = "$URL/v1"
wire_api = "responses"
C
}
configure_opencode() {
  cat >opencode.json <<C
{"provider": {"carat": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "$URL/v1", "apiKey": "test"},
  "models": {"$1": {"limit": {"context": 40960, "output": 40}}}}},
  "model": "carat/$1", "small_model": "carat/$1", "autoupdate": false, "share": "disabled"}
C
}
configure_qwen_code() { export OPENAI_API_KEY=test OPENAI_BASE_URL=$URL/v1 OPENAI_MODEL=$1; }
configure_pi() {
  mkdir -p "$HOME/.pi/agent"
  cat >"$HOME/.pi/agent/models.json" <<C
{"providers": {"carat": {"baseUrl": "$URL/v1", "api": "openai-completions", "apiKey": "test",
  "models": [{"id": "$1", "contextWindow": 40960, "maxTokens": 40}]}}}
C
  export PI_OFFLINE=1
}
configure_continue() {
  cat >"$HOME/continue.yaml" <<C
name: carat
version: 1.0.0
schema: v1
models:
  - {name: Carat, provider: openai, model: $1, apiBase: "$URL/v1", apiKey: test, roles: [chat], capabilities: [tool_use],
     defaultCompletionOptions: {contextLength: 40960, maxTokens: 40}}
C
}
configure_cline() { "$more/.bin/cline" auth -p openai-compatible -k test -m "$1" -b "$URL/v1" >/dev/null; }

# ---- how each asks: `ask_AGENT MODEL TEXT` begins a conversation, `again_AGENT MODEL TEXT` goes on with the last one.
ask_claude_code() { $by "$bin/claude" --model "$1" --allowedTools Bash -p "$2"; }
again_claude_code() { $by "$bin/claude" --model "$1" --allowedTools Bash --continue -p "$2"; }
ask_codex() { $by "$bin/codex" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$2"; }
again_codex() { $by "$bin/codex" exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox resume --last "$2"; }
ask_opencode() { $by "$more/.bin/opencode" run "$2"; }
again_opencode() { $by "$more/.bin/opencode" run --continue "$2"; }
ask_qwen_code() { $by "$more/.bin/qwen" --auth-type openai --yolo -p "$2"; }
again_qwen_code() { $by "$more/.bin/qwen" --auth-type openai --yolo --continue -p "$2"; }
ask_pi() { $by "$more/.bin/pi" --provider carat --model "$1" -p "$2"; }
again_pi() { $by "$more/.bin/pi" --provider carat --model "$1" --continue -p "$2"; }
ask_continue() { $by "$more/.bin/cn" --config "$HOME/continue.yaml" --auto -p "$2"; }
again_continue() { $by "$more/.bin/cn" --config "$HOME/continue.yaml" --auto --resume -p "$2"; }
ask_cline() { $by "$more/.bin/cline" -P openai-compatible -m "$1" "$2"; }
again_cline() {  # which goes on in a terminal alone: typed there, and found in its file
  session=$("$more/.bin/cline" history --json | sed -n 's/.*"sessionId":"\([^"]*\)".*/\1/p' | head -n 1)
  (sleep 6; printf '%s' "$2"; sleep 1; printf '\r'; sleep 6; printf '\003'; sleep 1; printf '\003'; sleep 1) |
    $by script -qec "'$more/.bin/cline' -P openai-compatible -m '$1' --id $session" /dev/null >/dev/null 2>&1 || true
  grep -o 'The tool has run' "$HOME/.cline/data/sessions/$session/$session.messages.json" | sed -n 2p
}

# Of the first prompt's tokens, how many were in the cache, in percent. Where an answer is cut, Claude Code asks more than once and
# sums up: what all of them read counts against one prompt.
reused() {
  node -e 'const { usage, num_turns } = JSON.parse(require("fs").readFileSync(0));
    const prompt = (usage.cache_read_input_tokens + usage.input_tokens) / num_turns;
    console.log(Math.floor(100 * (1 - usage.input_tokens / prompt)))'
}
second_session() {
  share=$($by "$bin/claude" --model carat --output-format json -p 'Say good evening.' </dev/null | reused)
  echo "claude-code: a second session reads $share % of its prompt from the cache"
  [ "$share" -ge 80 ] || fail "claude-code: too little is reused"
}

# each FUNCTION: for every agent, in a project of its own.
each() {
  for agent in $agents; do
    id=$(echo "$agent" | tr - _)
    mkdir -p "$work/$1/$agent"
    cd "$work/$1/$agent"
    began=$(date +%s)
    "$1"
    echo "ok $agent, $1, $(($(date +%s) - began)) s"
  done
  ! refused || fail "the server refused something"
}
request() {
  configure_$id carat
  answers 'a request' ask_$id carat 'Say hello.'
  case $agent in
    claude-code) second_session && answers 'a second request' again_$id carat 'Say it again.' ;;
    codex) answers 'a second request' again_$id carat 'Say it again.' ;;
  esac
  aborted ask_$id carat "$(seq 6000)"
}
tool_loop() {
  configure_$id "$agent"
  answers 'a tool' ask_$id "$agent" 'Write the file.'
  grep -qx 'carat ran this' made.txt || fail "$agent: the tool did not run: $(cat answer errors)"
  grep -q 'The tool has run' answer || fail "$agent: the tool's result did not come back: $(cat answer errors)"
  rm made.txt
  answers 'gone on with' again_$id "$agent" 'Say it again.'
  grep -q 'The tool has run' answer && [ ! -e made.txt ] || fail "$agent: the conversation is not known any more: $(cat answer errors)"
}

work=$(mktemp -d)
export HOME=$work/home
mkdir -p "$HOME" "$work/models"
python3 tests/agents/scripted.py "$model" "$work/models"
with_server "$carat" --models-dir "$work/models" -c 65536 --parallel 2 -- each tool_loop
with_server "$carat" -m "$model" -c 65536 --parallel 2 -n 400 -- each request
case $agents in *cline*) "$more/.bin/cline" hub stop >/dev/null ;; esac
rm -rf "$work"
