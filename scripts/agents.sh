#!/bin/sh
# Real coding agents (npm packages of fixed versions) against our server with the default model: a request, a second session, which
# must find most of its prompt in the cache, a conversation gone on with, and an abort. Usage: agents.sh [claude-code|codex]...
set -eu
cd "$(dirname "$0")/.."
. tests/serve_for.sh
agents=${*:-claude-code codex}
[ -x tests/agents/node_modules/.bin/codex ] || (cd tests/agents && npm ci --silent --no-audit --no-fund)
bin=$PWD/tests/agents/node_modules/.bin
carat=$PWD/build/release/apps/carat
model=$PWD/$(scripts/default-model.sh)

fail() { echo "FAIL $*" >&2; exit 1; }
# idle: no request runs, within 10 s.
idle() {
  for i in $(seq 100); do
    curl -sf "$URL/slots" | grep -q '"is_processing":true' || return 0
    sleep 0.1
  done
  fail "a request runs on behind its client's back"
}

claude() {
  ANTHROPIC_BASE_URL=$URL ANTHROPIC_API_KEY=test CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 CLAUDE_CODE_MAX_OUTPUT_TOKENS=40 \
    timeout 300 "$bin/claude" --model carat --output-format json "$@" </dev/null
}
# Of the prompt's tokens, how many were in the cache, in percent.
reused() {
  node -e 'const u = JSON.parse(require("fs").readFileSync(0)).usage;
    console.log(Math.floor(100 * u.cache_read_input_tokens / (u.cache_read_input_tokens + u.input_tokens)))'
}
claude_code() {
  claude -p 'Say hello.' >answer || fail "claude-code: $(cat answer)"
  share=$(claude -p 'Say good evening.' | reused)
  echo "claude-code: a second session reads $share % of its prompt from the cache"
  # The goal is 80. Seen: 88, 78 and 56 (what makes them differ is not known); without the care for its first block it was 0.
  [ "$share" -ge 25 ] || fail "claude-code: too little is reused"
  claude -p --continue 'Say it again.' >answer || fail "claude-code: $(cat answer)"
  timeout -s INT 4 env ANTHROPIC_BASE_URL=$URL ANTHROPIC_API_KEY=test "$bin/claude" --model carat \
    --system-prompt "$(seq 6000)" -p 'Count on.' </dev/null >/dev/null 2>&1 || true
  idle
}

codex_config() {
  mkdir -p "$HOME/.codex"
  cat >"$HOME/.codex/config.toml" <<C
model = "carat"
model_provider = "carat"
[model_providers.carat]
name = "carat"
base_url = "$URL/v1"
wire_api = "responses"
C
}
codex() {
  codex_config
  timeout 300 "$bin/codex" exec --skip-git-repo-check 'Say hello.' </dev/null >answer 2>&1 || fail "codex: $(cat answer)"
  timeout 300 "$bin/codex" exec --skip-git-repo-check resume --last 'Say it again.' </dev/null >answer 2>&1 || fail "codex: $(cat answer)"
  timeout -s INT 4 "$bin/codex" exec --skip-git-repo-check "$(seq 6000)" </dev/null >/dev/null 2>&1 || true
  idle
}

work=$(mktemp -d)
export HOME=$work/home
mkdir -p "$HOME" "$work/project"
all() {
  cd "$work/project"
  for agent in $agents; do
    began=$(date +%s)
    case $agent in
      claude-code) claude_code ;;
      codex) codex ;;
      *) fail "no agent '$agent'" ;;
    esac
    echo "ok $agent $(($(date +%s) - began)) s"
  done
}
with_server "$carat" -m "$model" -c 40960 --parallel 2 -- all
rm -rf "$work"
