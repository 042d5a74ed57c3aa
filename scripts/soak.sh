#!/bin/sh
# A server under 64 clients that stream, cancel, read slowly, break off, send garbage; a SIGTERM; 1,000 idle streams; its
# memory, descriptors and threads (from 10 minutes on, a line each 10 s). Usage: scripts/soak.sh [SECONDS [CARAT]]
set -eu
cd "$(dirname "$0")/.."
ulimit -n 4096
exec node tests/soak/soak.mjs "${2:-build/release/apps/carat}" "$(scripts/default-model.sh)" "${1:-120}"
