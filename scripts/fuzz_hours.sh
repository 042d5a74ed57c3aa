#!/bin/sh
# All fuzz targets for HOURS in all (a decimal number may be given), those of tests/fuzz/long among them, or the TARGETs
# named; a table of what was run for docs/lab in build/fuzz/counts.md. Usage: scripts/fuzz_hours.sh HOURS [TARGET...]
# HOURS are those of all targets together: two at a time (FUZZ_JOBS, see fuzz.sh) take half of it.
set -eu
cd "$(dirname "$0")/.."
hours=${1:?how many hours}
shift
[ -f build/fuzz/build.ninja ] && grep -q '^CARAT_FUZZ_LONG:BOOL=ON' build/fuzz/CMakeCache.txt ||
  cmake --preset fuzz -DCARAT_FUZZ_LONG=ON >/dev/null
[ $# -gt 0 ] || set -- $(for f in tests/fuzz/fuzz_*.cc tests/fuzz/long/fuzz_*.cc; do basename "$f" .cc; done)
seconds=$(awk "BEGIN { print int($hours * 3600 / $#) }")
status=0
scripts/fuzz.sh "$seconds" "$@" || status=1
stat() { grep -oE "stat::$1: +[0-9]+" "build/fuzz/$2.log" | grep -oE '[0-9]+$' || echo '-'; }
{
  echo "| target | seconds | executions | a second | edges reached | largest memory, MiB | slowest input, s | finding |"
  echo "| --- | --: | --: | --: | --: | --: | --: | --- |"
  for t in "$@"; do
    edges=$(grep -oE 'cov: [0-9]+' "build/fuzz/$t.log" | tail -n 1 | grep -oE '[0-9]+' || echo '-')
    found=$(ls build/fuzz/findings/"$t"-* 2>/dev/null | wc -l)
    echo "| $t | $seconds | $(stat number_of_executed_units "$t") | $(stat average_exec_per_sec "$t") | $edges |" \
      "$(stat peak_rss_mb "$t") | $(stat slowest_unit_time_sec "$t") | $([ "$found" = 0 ] && echo none || echo "$found") |"
  done
} >build/fuzz/counts.md
cat build/fuzz/counts.md
exit $status
