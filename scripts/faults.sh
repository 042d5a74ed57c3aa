#!/bin/sh
# Full disk, no memory, closed sockets, signals: what then happens to a server, a line each.
set -eu
cd "$(dirname "$0")/.."
exec node tests/faults/faults.mjs build/release/apps/carat "$(scripts/default-model.sh)"
