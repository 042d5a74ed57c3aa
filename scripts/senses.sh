#!/bin/sh
# carat-demo-e is shown pictures and played sounds made by a seed, and asked about them (10 s). Usage: senses.sh [CARAT]
set -eu
cd "$(dirname "$0")/.."
carat=$(realpath "${1:-build/release/apps/carat}")
. tests/serve_for.sh
made=$(mktemp -d)
ln -s /usr/share/fonts/truetype/dejavu "$made/fonts"
measure() { /usr/bin/python3 -m carat_train senses-measure --url "$URL" --carry "$made" "$@"; }
ask() { (cd train && measure --each 2 --sounds 0 --least 0.6 && measure --each 0 --sounds 12 --least 0.7 --show 9); }
with_server "$carat" -m "$(scripts/default-model.sh sees)" --device cpu -c 2048 -- ask
rm -r "$made"
