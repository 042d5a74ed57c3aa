#!/bin/sh
# Checks and measures one model on several GPUs of a machine; a table and one JSON record a row.
#
#   tools/gpu_check_parts.sh [--out DIR] PACKED [SHAPE:TYPE...]   PACKED: a folder of tools/gpu_check.sh --pack
#
# SHAPE: what `carat forge` knows; default 31b:q4_k_m. Without SHAPE `none`: no measurements.
# Order: equal bytes (parts_test), a lost context, texts of the demo model, then for each file one row, eight rows and prompts on one GPU, in
# tensor and layer mode, in peers' memory and in the host's.
set -u
cd "$(dirname "$0")/.."
out=/tmp/gpu_parts
[ "${1:-}" = --out ] && { out=$2; shift 2; }
packed=$1
shift
shapes=${*:-31b:q4_k_m}
case $packed in /*) ;; *) packed=$PWD/$packed ;; esac
bin=$packed/bin
export LD_LIBRARY_PATH="$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$out"
gpus=$(nvidia-smi -L | wc -l)
[ "$gpus" -ge 2 ] || { echo "one GPU only" >&2; exit 2; }
nvidia-smi topo -m
all=cuda:0
i=1
while [ $i -lt "$gpus" ]; do all=$all,cuda:$i; i=$((i + 1)); done
failed=0
check() {
  name=$1 limit=$2
  shift 2
  began=$(date +%s)
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then result=passed; else result=FAILED; failed=1; tail -n 25 "$out/$name.log"; fi
  echo "$result  $name  $(($(date +%s) - began)) s"
}

check parts 240 "$bin/parts_test"
model=models/carat-demo/carat-demo-q5_k_m.gguf
if [ -f $model ]; then
  say() { "$bin/carat" run -m $model --temp 0 -n 64 -p "Repeat: red green blue." "$@"; }
  say --device cuda:0 >"$out/one.txt" 2>"$out/one.log"
  for way in "-sm tensor" "-sm layer" "-sm tensor --peer host" "-sm layer --peer host" "-sm tensor -ts 3,1" "-sm tensor --spec ngram"; do
    # shellcheck disable=SC2086
    if say --device cuda:0,cuda:1 $way >"$out/two.txt" 2>"$out/two.log" && cmp -s "$out/one.txt" "$out/two.txt"; then
      echo "passed  demo $way"
    else
      echo "FAILED  demo $way"; failed=1; tail -n 5 "$out/two.log"
    fi
  done
fi

for shape in $shapes; do
  [ "$shape" = none ] && break
  file=/tmp/parts-${shape%%:*}-${shape##*:}.gguf
  check "forge-$shape" 400 "$bin/carat" forge "${shape%%:*}" "$file" --type "${shape##*:}"
  measure() {
    name=$1
    shift
    if timeout 200 "$bin/carat" bench -m "$file" "$@" -p 1,8,2048 -n 0 -d 512 -b 2048 -r 3 >"$out/$shape-$name.txt" 2>"$out/$shape-$name.log"; then
      echo "== $shape $name"; cat "$out/$shape-$name.txt"
    else
      echo "FAILED  $shape $name"; failed=1; tail -n 5 "$out/$shape-$name.log"
    fi
  }
  measure one --device cuda:0
  measure tensor --device "$all" -sm tensor
  measure tensor-host --device "$all" -sm tensor --peer host
  measure layer --device "$all" -sm layer
  measure layer-host --device "$all" -sm layer --peer host
  measure one-again --device cuda:0
  rm -f "$file"
done
exit $failed
