#!/bin/sh
# Checks and times a build on the machine it stands on: contract, invariance and golden tests on every instruction set
# present, then single products and a forged E2B. Usage: scripts/measure.sh [BUILD [OUT]]; prints a record for docs/lab.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
out=${2:-build/measure}
mkdir -p "$out"
{
  date -u +%Y-%m-%dT%H:%MZ
  grep -m1 'model name' /proc/cpuinfo
  echo "threads: $(nproc)"
  grep -m1 flags /proc/cpuinfo | tr ' ' '\n' | grep -E '^(avx2|avx512f|avx512_vnni|avx512_bf16|amx_int8|amx_bf16)$' | tr '\n' ' '
  echo
  for test in op_contract_test invariance_test goldens_test test_cpu; do
    echo "== $test"
    "$build/tests/$test" 2>&1 | tail -n 4
  done
} | tee "$out/checks.txt"
[ -f "$out/e2b.gguf" ] || "$build/apps/carat" forge e2b "$out/e2b.gguf" >"$out/forge.txt" 2>&1
for isa in amx avx512 avx2; do
  "$build/apps/carat" --log-level error bench -m "$out/e2b.gguf" --isa $isa -p 512 -n 32 -d 0,4096 -r 3 || true
done 2>&1 | tee "$out/bench.txt"
rm -f "$out/e2b.gguf"
