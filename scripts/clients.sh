#!/bin/sh
# Real npm packages against the built program: tokenizers, and API clients on a server with the default model.
set -eu
cd "$(dirname "$0")/.."
carat=build/release/apps/carat
tests/tokenizer_diff/run.sh
tests/openai/run.sh $carat "$(scripts/default-model.sh)"
tests/anthropic/run.sh $carat "$(scripts/default-model.sh)"
tests/js_clients/run.sh $carat "$(scripts/default-model.sh)"
tests/seeing/run.sh $carat
