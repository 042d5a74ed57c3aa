#!/bin/sh
# The real openai client against `carat serve`. Usage: run.sh CARAT MODEL
set -eu
[ $# -eq 2 ] || { echo "usage: run.sh CARAT MODEL" >&2; exit 2; }
cd "$(dirname "$0")/../.."
. tests/serve_for.sh
[ -d tests/openai/node_modules/openai ] || (cd tests/openai && npm ci --silent --no-audit --no-fund)
run() { node tests/openai/client.mjs "$URL" test-key; }
with_server "$1" -m "$2" --api-key test-key -c 4096 --parallel 3 -- run
