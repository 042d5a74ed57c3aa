#!/bin/sh
# Checks the CUDA backend on a machine with a GPU, then measures it; one JSON record.
#
#   tools/gpu_check.sh [--out FILE] [--quick] [SHAPE...]    builds here, checks, measures
#   tools/gpu_check.sh --pack DIR                           builds a folder to carry (GPU_ARCH, default 90a-real)
#   tools/gpu_check.sh --packed DIR [--out FILE] [SHAPE...] runs a carried folder, from the repository's root
#
# SHAPE: what `carat forge` knows, e.g. 26b-a4b 31b; default e2b. --quick: no measurements.
# Order: device, contract, goldens, pictures, sound, invariance, offload, lossless, sanitizer, ceiling, speed. A failed check is recorded and the rest
# still runs; the exit status is 1 if anything failed.
set -u
cd "$(dirname "$0")/.."
root=$PWD
tests="parts_test op_contract_test attention_invariance_test goldens_test vision_test hearing_test model_invariance_test offload_test lossless_full_test"
out=gpu_check.json
packed=
pack=
quick=no
shapes=
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift ;;
    --pack) pack=$2; shift ;;
    --packed) packed=$2; shift ;;
    --quick) quick=yes ;;
    -*) echo "unknown option $1" >&2; exit 2 ;;
    *) shapes="$shapes $1" ;;
  esac
  shift
done
shapes=${shapes:-e2b}

# Tests compare the device alone with ref: the CPU has its own runs.
build() {
  dir=$1
  shift
  cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCARAT_CUDA=ON -DCARAT_TEST_ONLY_CUDA=ON \
    -DCARAT_TEST_DATA=tests/data "$@" >/dev/null && cmake --build "$dir" --target carat $tests
}

if [ -n "$pack" ]; then
  build build/gpu "-DCARAT_CUDA_ARCHITECTURES=${GPU_ARCH:-90a-real}" || exit 1
  mkdir -p "$pack/bin" "$pack/lib"
  for program in apps/carat $(printf 'tests/%s ' $tests); do
    strip -o "$pack/bin/$(basename $program)" build/gpu/$program
  done
  # Whatever a bare machine may lack, the C library apart.
  for program in "$pack"/bin/*; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | while read -r lib; do cp -L "$lib" "$pack/lib/"; done
  du -sh "$pack"
  exit 0
fi

if [ -n "$packed" ]; then
  case $packed in /*) ;; *) packed=$root/$packed ;; esac
  bin=$packed/bin
  export LD_LIBRARY_PATH="$packed/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
  build build/gpu "-DCARAT_CUDA_ARCHITECTURES=${GPU_ARCH:-native}" || exit 1
  bin=$root/build/gpu/stage
  mkdir -p $bin
  ln -sf ../apps/carat $(printf '../tests/%s ' $tests) $bin/
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
records=$work/records
: >$records

# text -> a JSON string
quote() { tr -d '\000-\010\013-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/ /g' | awk 'BEGIN { printf "\"" } { printf "%s%s", (NR > 1 ? "\\n" : ""), $0 } END { printf "\"" }'; }
add() { { [ ! -s $records ] || printf ',\n'; printf '%s\n' "$1"; } >>$records; }

# check NAME SECONDS COMMAND...
check() {
  name=$1 limit=$2
  shift 2
  began=$(date +%s)
  timeout "$limit" "$@" >"$work/log" 2>&1
  status=$?
  took=$(($(date +%s) - began))
  result=passed
  [ $status = 0 ] || { result=failed; failed=1; tail -n 30 "$work/log"; }
  [ $status = 124 ] && result="timed out"
  echo "$result  $name  $took s"
  add "{\"check\": \"$name\", \"result\": \"$result\", \"seconds\": $took, \"end\": $(tail -n 12 "$work/log" | quote)}"
}

device=$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader 2>/dev/null || echo unknown)
echo "device: $device"
model=models/carat-demo/carat-demo-q5_k_m.gguf

[ "$(nvidia-smi -L 2>/dev/null | wc -l)" -lt 2 ] || check "several GPUs" 240 $bin/parts_test
check contract 300 $bin/op_contract_test -tc="every backend*"
check goldens 120 $bin/goldens_test
check vision 300 $bin/vision_test
check hearing 300 $bin/hearing_test
check invariance 200 $bin/model_invariance_test
check "attention invariance" 300 $bin/attention_invariance_test
check offload 120 $bin/offload_test
check lossless 300 $bin/lossless_full_test --prompts=2 --tokens=32
if [ -f $model ]; then
  prompt="Repeat: red green blue."
  check "demo on the device" 60 sh -c "$bin/carat run -m $model --device cuda --temp 0 -n 48 -p '$prompt' >$work/gpu.txt && test -s $work/gpu.txt"
  check "demo with speculation" 60 sh -c "$bin/carat run -m $model --device cuda --temp 0 -n 48 --spec ngram -p '$prompt' >$work/spec.txt && cmp $work/gpu.txt $work/spec.txt"
  check "demo with products on the CPU" 60 sh -c "$bin/carat run -m $model --device cuda -ot 'attn_(q|k|v|output)\.|ffn_down\.=CPU' --temp 0 -n 48 -p '$prompt' >$work/split.txt && cmp $work/gpu.txt $work/split.txt"
  check "demo on the CPU" 60 sh -c "$bin/carat run -m $model --device cpu --temp 0 -n 48 -p '$prompt' >$work/cpu.txt; cat $work/gpu.txt $work/cpu.txt"
fi
if command -v compute-sanitizer >/dev/null 2>&1 && [ -f $model ]; then
  for tool in memcheck racecheck synccheck; do
    check "sanitizer $tool" 300 compute-sanitizer --tool $tool --error-exitcode 9 $bin/carat run -m $model --device cuda --temp 0 -n 4 -p "Hello"
  done
else
  add '{"check": "sanitizer", "result": "compute-sanitizer is not installed"}'
fi

# bench NAME SECONDS FLAGS...
bench() {
  name=$1 limit=$2
  shift 2
  if timeout "$limit" $bin/carat bench -m $file --device cuda "$@" --json >"$work/bench" 2>"$work/log"; then
    add "{\"bench\": \"$shape q4_k_m, $name\", \"records\": $(cat "$work/bench")}"
    echo "measured  $shape $name"
  else
    failed=1
    echo "failed  $shape $name"
    tail -n 5 "$work/log"
    add "{\"bench\": \"$shape q4_k_m, $name\", \"result\": \"failed\", \"end\": $(tail -n 12 "$work/log" | quote)}"
  fi
}

if [ $quick = no ]; then
  for shape in $shapes; do
    file=$work/$shape.gguf
    check "forge $shape" 400 $bin/carat forge $shape $file --type q4_k_m
    # Decode at depths and prefill, with the ceiling of the same run; steps of 1 to 32 rows; where a step's time goes.
    bench decode 500 -p 512,2048 -n 32 -d 0,4096 -r 3 -b 2048
    bench deep 500 -p 2048 -n 16 -d 32768 --fill -r 2 -b 2048
    bench rows 200 -p 1,2,4,8,16,32 -n 0 -d 512 -r 7
    timeout 200 $bin/carat bench -m $file --device cuda --ops 1,8,32,512 -d 512 -r 3 >"$work/bench" 2>"$work/log" &&
      add "{\"bench\": \"$shape q4_k_m, operations\", \"text\": $(quote <"$work/bench")}"
    rm -f $file
  done
fi

{
  printf '{"when": "%s", "device": %s, "commit": "%s", "host": %s,\n "results": [\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
    "$(printf '%s' "$device" | quote)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$(uname -srm | quote)"
  cat $records
  printf ' ]}\n'
} >"$out"
echo "record: $out"
exit $failed
