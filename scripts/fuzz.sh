#!/bin/sh
# Builds the fuzz targets and runs each for SECONDS (default 60) under address and undefined-behaviour sanitizers, two at a
# time. Usage: scripts/fuzz.sh [SECONDS [TARGET...]]. A finding is kept in build/fuzz/findings.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ -f build/fuzz/build.ninja ] || cmake --preset fuzz
cmake --build build/fuzz --target fuzz_targets
mkdir -p build/fuzz/findings build/fuzz/corpus
[ $# -gt 0 ] || set -- $(for f in tests/fuzz/fuzz_*.cc; do basename "$f" .cc; done)

run() {
  mkdir -p "build/fuzz/corpus/$1"
  seeds=tests/fuzz/corpus/$1
  [ -d "$seeds" ] || seeds=
  build/fuzz/tests/fuzz/$1 -max_total_time=$seconds -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/findings/$1- "build/fuzz/corpus/$1" $seeds >build/fuzz/$1.log 2>&1
}
status=0
while [ $# -gt 0 ]; do
  first=$1
  shift
  run $first &
  p1=$!
  second=
  if [ $# -gt 0 ]; then
    second=$1
    shift
    run $second &
    p2=$!
  fi
  for pair in "$first:$p1" ${second:+"$second:$p2"}; do
    name=${pair%:*}
    if wait ${pair#*:}; then
      echo "$name: $(grep 'number_of_executed_units' build/fuzz/$name.log | grep -oE '[0-9]+') executions, no finding"
    else
      echo "$name: FAILED"
      tail -n 30 build/fuzz/$name.log
      status=1
    fi
  done
done
exit $status
