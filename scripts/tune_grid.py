"""Holds a map of `carat tune` against a full grid: every setting measured, then the map's choice and the grid's best in turns.

tune_grid.py CARAT MODEL DRAFTER TEXT STATE [--caches f16,q8_0] [--drafters suffix,mtp] [--depths 1,2,4] [--threads 1,2] [--rounds 2] [-n 32] [-r 2]
STATE: the folder of `carat tune --state`. Prints a table; fails where a choice is more than 3 % slower than the best."""
import argparse, json, statistics, subprocess, sys, time

p = argparse.ArgumentParser()
for name in ("carat", "model", "drafter", "text", "state"):
    p.add_argument(name)
p.add_argument("--caches", default="f16,q8_0")
p.add_argument("--drafters", default="suffix,mtp")
p.add_argument("--depths", default="1,2,4")
p.add_argument("--threads", default="1,2")
p.add_argument("--prompts", default="share/prompts.json")
p.add_argument("--rounds", type=int, default=2)
p.add_argument("--duel", type=int, default=4)
p.add_argument("-n", default="32")
p.add_argument("-r", default="2")
o = p.parse_args()


def run(context, kind, cache, threads, drafters, depths):
    """Settings of one engine in turns: {(cache, threads, drafters, depth): [tok/s, ...]}."""
    k, v = (cache + "/" + cache).split("/")[:2]
    args = ["bench", "-m", o.model, "-md", o.drafter, "-t", threads, "-ctk", k, "-ctv", v, "--spec", drafters, "--draft-depths", depths,
            "--prompts", o.prompts, "--only", kind, "--before", o.text, "-d", str(context - int(o.n) - 128), "-n", o.n, "-r", o.r]
    out = subprocess.run([o.carat, *args, "--json", "--log-level", "error"], capture_output=True, text=True, check=True).stdout
    seen = {}
    for r in json.loads(out):
        draft = "" if r["settings"]["draft"] == "none" else r["settings"]["draft"]
        key = (cache, threads, draft, str(r["settings"]["dm"]) if draft else "0")
        seen.setdefault(key, []).append(r["figures"]["decode_tps"])
    return seen


def drafters_of(key):  # what one process needs to run that setting
    return (key[2] or o.drafters, "0" if key[3] in ("0", "auto") else key[3])


def name(key):
    return f"{key[0]}, {key[1]} threads, " + (f"{key[2]} {key[3]}" if key[2] else "no drafter")


regimes = [r for r in json.load(open(o.state + "/regimes.json")) if r["kind"] == "regime"]
worst, began = 0, time.time()
print("| context | text | chosen | tok/s | best of the grid | tok/s | of the best, grid | in turns |\n| --: | --- | --- | --: | --- | --: | --: | --: |")
for regime in regimes:
    s = regime["settings"]
    cells, grid = [(c, t) for c in o.caches.split(",") for t in o.threads.split(",")], {}
    for round in range(o.rounds):
        for cache, threads in cells if round % 2 == 0 else cells[::-1]:
            for key, speeds in run(s["ctx"], s["prompts"], cache, threads, o.drafters, o.depths).items():
                grid.setdefault(key, []).extend(speeds)
    chosen = (s["kv"], str(s["threads"]), s["draft"], s["dm"] if s["draft"] else "0")
    if chosen not in grid:  # drafters by themselves, which the grid has together
        grid[chosen] = sum((run(s["ctx"], s["prompts"], *chosen[:2], *drafters_of(chosen))[chosen] for _ in range(o.rounds)), [])
    speed = {key: statistics.median(v) for key, v in grid.items()}
    best = max(speed, key=speed.get)
    duel = {best: [], chosen: []}
    for i in range(o.duel if best != chosen else 0):
        for key in (best, chosen) if i % 2 == 0 else (chosen, best):
            duel[key] += run(s["ctx"], s["prompts"], key[0], key[1], *drafters_of(key))[key]
    turns = statistics.median(duel[chosen]) / statistics.median(duel[best]) if best != chosen else 1.0
    share = speed[chosen] / speed[best]
    worst = max(worst, 1 - turns)
    print(f"| {s['ctx']} | {s['prompts']} | {name(chosen)} | {speed[chosen]:.1f} | {name(best)} | {speed[best]:.1f} | {100 * share:.1f} % | "
          f"{100 * turns:.1f} % |", flush=True)
print(f"\n{len(regimes)} lines, {len(grid)} settings each, {time.time() - began:.0f} s; the worst choice is {100 * worst:.1f} % slower than the best")
sys.exit(worst > 0.03)
