#!/bin/sh
# The tables and charts of three reports that people made by hand, made anew by commands: on the demo family, or on
# a model of your own. Usage: scripts/reports.sh [CARAT [OUT [MODEL DRAFTER]]]; OUT/report.html and OUT/report.md show all of it.
# Every measurement is a record in OUT/records; CARAT_DEVICE=cuda, say, chooses the device.
set -eu
cd "$(dirname "$0")/.."
carat=${1:-build/release/apps/carat}
out=${2:-build/reports}
model=${3:-models/carat-demo/carat-demo-q5_k_m.gguf}
mtp=${4:-models/carat-demo-mtp/carat-demo-mtp-q8_0.gguf}
prompts=${PROMPTS:-share/prompts.json}
suite=${SUITE:-demo}
mkdir -p "$out/records"
keep="--records $out/records"
head -c 30000 "${TEXT:-docs/operations.md}" >"$out/text.txt"
failed=0
run() {
  echo "== carat $*"
  "$carat" "$@" || { failed=1; echo "FAILED: carat $*"; }
}

# The first: a gate of perplexity, gates of answers, sizes of caches, speeds and acceptance of drafters and their mixes.
run eval ppl -m "$model" -f "$out/text.txt" -c 256 -b 256 -ub 256 --ppl-stride 64 --chunks 16 --by-chunk \
  --caches f16,q8_0,q8_0/tq4,tq3/tq4,tq3,tbq3,tbq4 $keep
run eval kld -m "$model" -f "$out/text.txt" -c 256 --chunks 6 --caches q8_0,fp8,q8_0/tq4,kv4,tq4,tq3/tq4,tq3,tbq4,tbq3 $keep
run gate "$suite" -m "$model" --model-draft "$mtp" $keep
run plan 26b-a4b -c 8K,128K --memory 24G $keep
run plan 31b -c 8K,128K --memory 24G $keep
for drafters in mtp ngram-mod mtp,ngram-mod; do
  run bench -m "$model" -md "$mtp" --spec $drafters --prompts "$prompts" --only code,dialogue --draft-depths 1,2,4 -n 48 -r 2 $keep
done

# The second: n = 1 to 4 beside plain decoding with acceptance by place, at temperature 0.7; another body under the same drafter.
run bench -m "$model" -md "$mtp" --spec mtp --prompts "$prompts" --only code --draft-depths 1,2,3,4 --temp 0.7 -n 48 -r 2 $keep
run eval acceptance -m "$model" -md "$mtp" --spec mtp --prompts "$prompts" --only code,dialogue --depths 1,2,3,4 -n 64 $keep

# The third: one variable at a time, the map of regimes, joules where the machine tells them, and its CSV.
if [ "$model" = models/carat-demo/carat-demo-q5_k_m.gguf ]; then
  dflash=models/carat-demo-dflash/carat-demo-dflash-q5_k_m.gguf
  run bench -m "$model" -md $dflash --spec dflash --prompts "$prompts" --only code --draft-depths 4,8 -n 48 -r 2 $keep \
    --sweep draft-p-min=0,0.6
fi
run bench -m "$model" -p 512,2048 -n 64 -r 3 --caches f16,q8_0,tq4,tq3 -d 0,2048 $keep
run tune -m "$model" -md "$mtp" --contexts "${CONTEXTS:-1024,4096}" --kinds code,dialogue --caches f16,q8_0,tq3 --depths 1,2,4 --prompts "$prompts" \
  --text "$out/text.txt" --minutes "${MINUTES:-10}" -r 2 -n 32 --state "$out/records" --out "$out/carat.ini"

"$carat" report "$out/records" --tables scripts/reports.json --title "${TITLE:-Carat: three reports made anew}" --out "$out/report.html" --markdown "$out/report.md"
exit $failed
