#!/bin/sh
# The clients of tests/openai, tests/anthropic and tests/js_clients send pictures to a small model that sees, and sounds to
# one that hears; their packages are there already. Usage: run.sh CARAT
set -eu
[ $# -eq 1 ] || { echo "usage: run.sh CARAT" >&2; exit 2; }
cd "$(dirname "$0")/../.."
. tests/serve_for.sh
see() {
  for client in openai anthropic js_clients; do node tests/$client/see.mjs "$URL" test-key || return 1; done
}
hear() { node tests/openai/hear.mjs "$URL" test-key; }
with_server "$1" -m "$(tests/seeing/model.sh)" --device cpu --api-key test-key -c 2048 -b 512 -- see
with_server "$1" -m "$(tests/seeing/model.sh audio)" --device cpu --api-key test-key -c 4096 -- hear
