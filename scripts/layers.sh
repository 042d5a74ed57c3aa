#!/bin/sh
# Includes point down only: a file of src/LAYER may include its own layer and those listed here.
set -eu
cd "$(dirname "$0")/.."
allow() {
  layer=$1
  shift
  pattern=$(printf '%s|' "$layer" "$@")
  bad=$(grep -nE '^#include "(base|core|ref|cpu|cuda|parts|state|model|text|engine|tools|serve|apps|tests)/' -r src/$layer 2>/dev/null |
    grep -v '_test\.cc:' | grep -vE "#include \"(${pattern%|})/" || true)
  if [ -n "$bad" ]; then
    echo "src/$layer may include only: $layer $*"
    echo "$bad"
    exit 1
  fi
}
allow base
allow core base
allow ref core base
allow cpu core base
allow cuda core base
allow parts core base
allow state core base
allow model media state core base
allow text base
allow media base
allow measure model state core base
allow engine model state core base
allow tools model text state core base
allow serve engine text media model state core base
# Only base and serve/config may read the environment; nobody below apps names a backend's folder.
bad=$(grep -rnE '\bgetenv\(' src apps | grep -v '^src/serve/config' || true)
[ -z "$bad" ] || { echo "environment read outside src/serve/config.cc:"; echo "$bad"; exit 1; }
# A family's names stand in model/, text/ and the registry of shapes; the rest knows families as data.
bad=$(grep -rniE 'qwen' src/base src/core src/ref src/cpu src/cuda src/parts src/state src/engine src/tools src/serve apps 2>/dev/null |
  grep -vE '^src/tools/shapes|^apps/cli.cc.*CLI::App|_test\.cc:' || true)
[ -z "$bad" ] || { echo "a model family named where it should not be known:"; echo "$bad"; exit 1; }
# The table of folders in docs/design.md names every folder of src.
for folder in $(find src -type d | sed 1d); do
  name=$(basename "$folder")
  case $folder in src/*/*) word="\`$name/\`" ;; *) word="\`$folder\`" ;; esac
  grep -q -F -- "$word" docs/design.md || { echo "docs/design.md does not name the folder $folder"; exit 1; }
done
