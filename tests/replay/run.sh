#!/bin/sh
# Requests of other servers' tests against ours: replay.py on the default model. Usage: tests/replay/run.sh [-v]
set -eu
cd "$(dirname "$0")/../.."
. tests/serve_for.sh
replay() { python3 tests/replay/replay.py "$URL" "$@"; }
with_server build/release/apps/carat -m "$(scripts/default-model.sh)" -c 8192 --parallel 4 -- replay "$@"
