#!/bin/sh
# A server under 64 clients that stream, cancel, read slowly, send garbage; a SIGTERM half-way; 1,000 idle streams; memory.
# Usage: scripts/soak.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
ulimit -n 4096
exec node tests/soak/soak.mjs build/release/apps/carat "$(scripts/default-model.sh)" "${1:-120}"
