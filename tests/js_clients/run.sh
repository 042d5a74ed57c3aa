#!/bin/sh
# The AI SDK, LangChain.js and Ollama's package against `carat serve`. Usage: run.sh CARAT MODEL
set -eu
[ $# -eq 2 ] || { echo "usage: run.sh CARAT MODEL" >&2; exit 2; }
cd "$(dirname "$0")/../.."
. tests/serve_for.sh
[ -d tests/js_clients/node_modules/ollama ] || (cd tests/js_clients && npm ci --silent --ignore-scripts --no-audit --no-fund)
run() { node tests/js_clients/client.mjs "$URL" test-key; }
with_server "$1" -m "$2" --api-key test-key -c 4096 -- run
