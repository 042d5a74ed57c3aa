# Sourced: with_server CARAT MODEL FLAGS -- COMMAND... runs COMMAND URL with a server beside it, and shows its log if
# either fails.
with_server() {
  carat=$1
  shift
  log=$(mktemp)
  server=
  trap 'kill $server 2>/dev/null || true; rm -f "$log"' EXIT
  flags=
  while [ "$1" != -- ]; do
    flags="$flags $1"
    shift
  done
  shift
  "$carat" serve --port 0 $flags >"$log" 2>&1 &
  server=$!
  url=
  for i in $(seq 600); do
    url=$(sed -n 's/^Serving .* at \(http:[^ ]*\).*/\1/p' "$log")
    [ -n "$url" ] && break
    kill -0 $server 2>/dev/null || break
    sleep 0.1
  done
  [ -n "$url" ] || { echo "the server did not start:" >&2; cat "$log" >&2; return 1; }
  status=0
  URL=$url "$@" || { status=1; cat "$log"; }
  kill -TERM $server
  wait $server || { echo "the server ended with status $?" >&2; cat "$log" >&2; status=1; }
  rm -f "$log"
  trap - EXIT
  return $status
}
