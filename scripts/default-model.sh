#!/bin/sh
# Prints the path of the default model; makes it first if it does not ship with the source.
# `default-model.sh drafter`: the path of its drafter, or nothing. `default-model.sh sees`: of the model that sees and hears.
set -eu
cd "$(dirname "$0")/.."
if [ "${1:-}" = drafter ]; then
  for file in models/carat-demo/*.gguf models/carat-demo-mtp/*.gguf; do
    [ -f "$file" ] || exit 0
  done
  echo models/carat-demo-mtp/*.gguf
  exit 0
fi
if [ "${1:-}" = sees ]; then
  echo models/carat-demo-e/carat-demo-e-*.gguf
  exit 0
fi
for file in models/carat-demo/*.gguf; do
  if [ -f "$file" ]; then
    echo "$file"
    exit 0
  fi
done
file=build/models/tiny.gguf
if [ ! -f $file ]; then
  echo "Making a tiny model with random weights (no trained model ships yet): $file" >&2
  mkdir -p build/models
  build/release/apps/carat forge tiny $file >&2
fi
echo $file
