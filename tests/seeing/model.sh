#!/bin/sh
# Puts together a small model that sees, or one that hears as well (random weights of the reference's goldens, and a
# vocabulary of bytes), and prints its folder. For programs that send pictures and sounds: what it says means nothing.
# Usage: model.sh [vision|audio]
set -eu
cd "$(dirname "$0")/../.."
golden=tests/data/goldens/gemma4_${1:-vision}
folder=build/models/seeing
[ "${1:-vision}" = vision ] || folder=build/models/hearing
mkdir -p $folder
cp "$golden/config.json" "$golden/model.safetensors" tests/seeing/tokenizer.json tests/seeing/tokenizer_config.json $folder/
echo $folder
