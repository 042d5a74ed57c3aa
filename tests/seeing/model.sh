#!/bin/sh
# Puts together a small model that sees (random weights of the reference's goldens, and a vocabulary of bytes) and
# prints its folder. For programs that send pictures: what it says means nothing.
set -eu
cd "$(dirname "$0")/../.."
folder=build/models/seeing
mkdir -p $folder
cp tests/data/goldens/gemma4_vision/config.json tests/data/goldens/gemma4_vision/model.safetensors \
  tests/seeing/tokenizer.json tests/seeing/tokenizer_config.json $folder/
echo $folder
