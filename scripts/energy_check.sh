#!/bin/sh
# Joules of `carat bench` against nvidia-smi, whose watts are read ten times a second meanwhile and integrated.
# Usage: scripts/energy_check.sh CARAT FILE.gguf [flags of bench, in place of -p 8192 -n 512 -r 60]   fails where they differ by more than 5 %.
set -eu
[ $# -ge 2 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
carat=$1 model=$2
shift 2
[ $# -gt 0 ] || set -- -p 8192 -n 512 -r 60
dir=$(mktemp -d)
trap 'kill $watcher 2>/dev/null || true; rm -rf "$dir"' EXIT
watcher=
# Watts of the moment where the driver tells them: those of power.draw are a second's mean on newer GPUs.
watts=power.draw.instant
nvidia-smi -i "${GPU:-0}" --query-gpu=$watts --format=csv,noheader,nounits >/dev/null 2>&1 || watts=power.draw
# Each line with the time it came: nvidia-smi's own stamps are of a zone that it does not name.
stdbuf -oL nvidia-smi -i "${GPU:-0}" --query-gpu=$watts --format=csv,noheader,nounits -lms 100 |
  python3 -uc 'import sys, time
for line in sys.stdin: print(time.time(), line.strip(), flush=True)' >"$dir/watts" &
watcher=$!
sleep 1
"$carat" bench -m "$model" "$@" --json >"$dir/records"
sleep 1
kill $watcher 2>/dev/null || true
python3 - "$dir/records" "$dir/watts" <<'PYTHON'
import json, sys

watts = [tuple(map(float, line.split())) for line in open(sys.argv[2]) if len(line.split()) == 2]
worst = 0
print("| test | seconds | carat J | nvidia-smi J | carat over nvidia-smi | source |\n| --- | ---: | ---: | ---: | ---: | --- |")
for r in json.load(open(sys.argv[1])):
    f = r["figures"]
    if "total_energy_j" not in f:
        sys.exit("this machine tells carat no joules")
    # What carat counted are the repetitions alone; between them nothing of weight runs.
    inside = [w for t, w in watts if f["from"] <= t <= f["until"]]
    if len(inside) < 10:
        sys.exit(f"{r['settings']['test']} ran for {f['wall_s']:.1f} s: too short for ten readings a second; take a larger -p, -n or -r")
    joules = sum(inside) / len(inside) * f["wall_s"]
    differs = f["total_energy_j"] / joules - 1
    worst = max(worst, abs(differs))
    print(f"| {r['settings']['test']} | {f['wall_s']:.2f} | {f['total_energy_j']:.1f} | {joules:.1f} | {100 * differs:+.1f} % | {r.get('energy_sources')} |")
print(f"largest difference {100 * worst:.1f} %, at most 5 % is asked for")
sys.exit(worst > 0.05)
PYTHON
