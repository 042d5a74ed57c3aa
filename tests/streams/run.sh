#!/bin/sh
# The longest silences of streams (gaps.py), with the flags given: tests/streams/run.sh [-t 1 ...]
set -eu
cd "$(dirname "$0")/../.."
. tests/serve_for.sh
gaps() { python3 tests/streams/gaps.py "$URL"; }
with_server build/release/apps/carat -m "$(scripts/default-model.sh)" -c 32768 "$@" -- gaps
