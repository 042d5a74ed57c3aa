#!/bin/sh
# Builds the fuzz targets and runs each for SECONDS (default 60) under address and undefined-behaviour sanitizers.
# Usage: scripts/fuzz.sh [SECONDS [TARGET...]]. A finding is kept in build/fuzz/findings. Read from the environment:
# FUZZ_JOBS, how many run at a time (2); FUZZ_TIMEOUT, seconds that an input may take (20); FUZZ_UNDER, a command
# that starts each target, as a queue of a shared machine does.
set -eu
cd "$(dirname "$0")/.."
run() {  # one target
  mkdir -p "build/fuzz/corpus/$1"
  seeds=tests/fuzz/corpus/$1
  [ -d "$seeds" ] || seeds=
  if ${FUZZ_UNDER:-} build/fuzz/tests/fuzz/$1 -max_total_time=$2 -timeout=${FUZZ_TIMEOUT:-20} -rss_limit_mb=3000 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/findings/$1- "build/fuzz/corpus/$1" $seeds >build/fuzz/$1.log 2>&1; then
    echo "$1: $(grep 'number_of_executed_units' build/fuzz/$1.log | grep -oE '[0-9]+') executions, no finding"
  else
    echo "$1: FAILED"
    tail -n 30 build/fuzz/$1.log
    return 1
  fi
}
if [ "${1:-}" = --one ]; then
  run "$2" "$3"
  exit
fi
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ -f build/fuzz/build.ninja ] || cmake --preset fuzz
cmake --build build/fuzz --target fuzz_targets
mkdir -p build/fuzz/findings build/fuzz/corpus
[ $# -gt 0 ] || set -- $(for f in tests/fuzz/fuzz_*.cc; do basename "$f" .cc; done)
printf '%s\n' "$@" | xargs -P "${FUZZ_JOBS:-2}" -I {} scripts/fuzz.sh --one {} "$seconds"
