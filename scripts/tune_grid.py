"""Holds a map of `carat tune` against a full grid: every setting measured, then the map's choice and the grid's best against each other.

tune_grid.py CARAT MODEL DRAFTER TEXT STATE [--caches f16,q8_0] [--drafters suffix,mtp] [--depths 1,2,4] [--threads 1,2] [--rounds 2] [-n 32]
             [-r 2] [--pairs 12] [--minutes 60]
STATE: the folder of `carat tune --state`; what was measured is kept there, in grid/, and the same command goes on.

The fastest of many noisy medians is fast by luck as well. So the two meet once more: both in one process where they share an engine, else in
turns A B B A, until the 90 % interval of choice over best (from the ratios of pairs) tells it, or --pairs are over. A choice is worse only
where the whole interval lies below 97 %, as good where it lies above; else the two could not be told apart. "Noise" is how far the same
setting was from itself, run to run. Fails where a choice is worse."""
import argparse, hashlib, json, math, os, statistics, subprocess, sys, time

p = argparse.ArgumentParser()
for name in ("carat", "model", "drafter", "text", "state"):
    p.add_argument(name)
p.add_argument("--caches", default="f16,q8_0")
p.add_argument("--drafters", default="suffix,mtp")
p.add_argument("--depths", default="1,2,4")
p.add_argument("--threads", default="1,2")
p.add_argument("--prompts", default="share/prompts.json")
p.add_argument("--rounds", type=int, default=2)
p.add_argument("--pairs", type=int, default=12)
p.add_argument("--minutes", type=float, default=60)
p.add_argument("-n", default="32")
p.add_argument("-r", default="2")
o = p.parse_args()
FLOOR = 0.97
T95 = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75]  # Student's t, from one degree of freedom on
end = time.time() + 60 * o.minutes
runs = busy = 0


class OutOfTime(Exception):
    pass


def records(args, round):
    """What carat bench printed, from the folder if it ran before."""
    global runs, busy
    name = hashlib.sha256("\n".join([*args, str(round)]).encode()).hexdigest()[:16]
    path = f"{o.state}/grid/{name}.json"
    if not os.path.exists(path):
        if time.time() > end:
            raise OutOfTime()
        out = subprocess.run([o.carat, *args, "--json", "--log-level", "error"], capture_output=True, text=True, check=True).stdout
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "w") as f:
            f.write(out)
        os.replace(path + ".new", path)
    got = json.load(open(path))
    runs += 1
    busy += bool(got[0]["busy"])
    return got


def run(context, kind, cache, threads, drafters, depths, round):
    """Settings of one engine in turns: {(cache, threads, drafters, depth): tok/s}."""
    k, v = (cache + "/" + cache).split("/")[:2]
    args = ["bench", "-m", o.model, "-t", threads, "-ctk", k, "-ctv", v, "--spec", drafters, "--draft-depths", depths, "--prompts", o.prompts,
            "--only", kind, "--before", o.text, "-d", str(context - int(o.n) - 128), "-n", o.n, "-r", o.r]
    if "mtp" in drafters or "dflash" in drafters or "model" in drafters:
        args += ["-md", o.drafter]
    seen = {}
    for r in records(args, round):
        draft = "" if r["settings"]["draft"] == "none" else r["settings"]["draft"]
        key = (cache, threads, draft, str(r["settings"]["dm"]) if draft else "0")
        seen.setdefault(key, []).append(r["figures"]["decode_tps"])
    return {key: statistics.median(v) for key, v in seen.items()}


def drafters_of(keys):
    """Flags of one process that runs these settings of one engine: drafters, fixed depths."""
    names, depths = [], []
    for _, _, draft, depth in keys:
        names += [d for d in (draft or o.drafters.split(",")[0]).split(",") if d not in names]
        depths += [depth] if depth not in ("0", "auto", *depths) else []
    return ",".join(names), ",".join(depths) or "0"


def interval(ratios):
    """Mean of the ratios (of their logarithms), and its 90 % interval."""
    logs = [math.log(x) for x in ratios]
    m = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(m), 0.0, math.inf
    half = T95[min(len(logs) - 2, len(T95) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(m), math.exp(m - half), math.exp(m + half)


def duel(context, kind, chosen, best):
    """(ratio, low, high), noise of a run, pairs."""
    a, b = [], []
    same = chosen[:2] == best[:2] and set((chosen[2] or best[2]).split(",")) == set((best[2] or chosen[2]).split(","))
    told = (1.0, 0.0, math.inf)
    for i in range(o.pairs):
        if same:
            seen = run(context, kind, *chosen[:2], *drafters_of([chosen, best]), f"duel {i}")
            a.append(seen[chosen]), b.append(seen[best])
        else:
            for key, speeds in ((chosen, a), (best, b)) if i % 2 == 0 else ((best, b), (chosen, a)):
                speeds.append(run(context, kind, *key[:2], *drafters_of([key]), f"duel {i}")[key])
        told = interval([x / y for x, y in zip(a, b)])
        if i >= 3 and (told[1] >= FLOOR or told[2] < FLOOR):
            break
    noise = max(max(v) / min(v) - 1 for v in (a, b)) if len(a) > 1 else math.nan
    return told, noise, len(a)


def name(key):
    return f"{key[0]}, {key[1]} threads, " + (f"{key[2]} {key[3]}" if key[2] else "no drafter")


def hold(s):
    """One line of the map: a line of the table, and the verdict."""
    context, kind = s["ctx"], s["prompts"]
    cells, grid = [(c, t) for c in o.caches.split(",") for t in o.threads.split(",")], {}
    for round in range(o.rounds):
        for cache, threads in cells if round % 2 == 0 else cells[::-1]:
            for key, speed in run(context, kind, cache, threads, o.drafters, o.depths, round).items():
                grid.setdefault(key, []).append(speed)
    chosen = (s["kv"], str(s["threads"]), s["draft"], s["dm"] if s["draft"] else "0")
    for round in range(o.rounds if chosen not in grid else 0):  # a drafter by itself, which the grid has together with others
        grid.setdefault(chosen, []).append(run(context, kind, *chosen[:2], *drafters_of([chosen]), round)[chosen])
    speed = {key: statistics.median(v) for key, v in grid.items()}
    best = max(speed, key=speed.get)
    (ratio, low, high), noise, pairs = duel(context, kind, chosen, best) if best != chosen else ((1, 1, 1), 0, 0)
    verdict = "the same" if best == chosen else "worse" if high < FLOOR else "as good" if low >= FLOOR else "not told apart"
    print(f"| {context} | {kind} | {name(chosen)} | {speed[chosen]:.1f} | {name(best)} | {speed[best]:.1f} | "
          f"{100 * speed[chosen] / speed[best]:.1f} % | " +
          (f"{100 * ratio:.1f} % ({100 * low:.1f} to {100 * high:.1f}) | {pairs} | {100 * noise:.0f} % | " if pairs else "- | 0 | - | ") +
          f"{verdict} |", flush=True)
    return verdict, len(grid)


regimes = [r for r in json.load(open(o.state + "/regimes.json")) if r["kind"] == "regime"]
began, verdicts = time.time(), []
print("| context | text | chosen | tok/s | best of the grid | tok/s | chosen over it in the grid | against each other, 90 % interval | pairs | noise | "
      "verdict |\n| --: | --- | --- | --: | --- | --: | --: | --- | --: | --: | --- |")
try:
    for regime in regimes:
        verdicts.append(hold(regime["settings"]))
except OutOfTime:
    print(f"\nthe time was over after {len(verdicts)} of {len(regimes)} lines: the same command goes on")
    sys.exit(3)
worse = sum(v == "worse" for v, _ in verdicts)
print(f"\n{len(regimes)} lines, {max(n for _, n in verdicts)} settings each, {time.time() - began:.0f} s; {worse} worse than 97 % of the best, "
      f"{sum(v == 'not told apart' for v, _ in verdicts)} not told apart; {busy} of {runs} runs beside others")
sys.exit(worse > 0)
