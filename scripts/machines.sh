#!/bin/sh
# Several servers behind the balancers of deploy/, restarted under load; KV events and metrics as others read them. Some 40 s.
# Usage: scripts/machines.sh [balancers] [kv] [metrics] [dashboard] [socket]
set -eu
cd "$(dirname "$0")/.."
# Debian's Python: python3-zmq and python3-msgpack are modules of this one.
exec /usr/bin/python3 tests/machines/run.py build/release/apps/carat models/carat-demo/carat-demo-q5_k_m.gguf "$@"
