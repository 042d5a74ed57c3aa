#!/bin/sh
# Formatting and file length. --fix rewrites the files.
set -eu
cd "$(dirname "$0")/.."
files=$(find src apps tests -name node_modules -prune -o -type f -regex '.*\.\(cc\|h\|inl\|cu\|cuh\)' -print)
if [ "${1:-}" = --fix ]; then
  echo "$files" | xargs clang-format -i
else
  echo "$files" | xargs clang-format --dry-run --Werror
fi
# Past 1,000 lines a file is two files (generated tables excepted).
echo "$files" | grep -v '_table\.' | xargs wc -l | awk '$2 != "total" && $1 > 1000 {print $2 ": " $1 " lines"; bad = 1} END {exit bad}'
