#!/bin/sh
# The real Anthropic client against `carat serve`. Usage: run.sh CARAT MODEL
set -eu
[ $# -eq 2 ] || { echo "usage: run.sh CARAT MODEL" >&2; exit 2; }
carat=$(realpath "$1")
model=$(realpath "$2")
cd "$(dirname "$0")"
[ -d node_modules/@anthropic-ai/sdk ] || npm ci --silent --no-audit --no-fund

log=$(mktemp)
trap 'kill $server 2>/dev/null || true; rm -f "$log"' EXIT
server=
"$carat" serve -m "$model" --port 0 --api-key test-key -c 4096 --parallel 3 >"$log" 2>&1 &
server=$!
url=
for i in $(seq 600); do
  url=$(sed -n 's/^Serving .* at \(http:[^ ]*\).*/\1/p' "$log")
  [ -n "$url" ] && break
  kill -0 $server 2>/dev/null || break
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start:" >&2; cat "$log" >&2; exit 1; }

status=0
node client.mjs "$url" test-key || { status=1; cat "$log"; }
kill -TERM $server
wait $server || { echo "the server ended with status $?" >&2; cat "$log" >&2; status=1; }
exit $status
