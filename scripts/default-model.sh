#!/bin/sh
# Prints the path of the default model; makes it first if it does not ship with the source.
set -eu
cd "$(dirname "$0")/.."
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
