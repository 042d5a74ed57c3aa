"""The plan's scheduler, with shell commands for stages."""
import json
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from carat_train.plan import Plan                           # noqa: E402


class Shell(Plan):
    """stages: name: (needs, seconds, shell text); the text runs in OUT and "ok" marks the stage."""

    def stages(self):
        return self.table

    def command(self, name):
        return ["sh", "-c", f"cd {self.out}; ok() {{ touch {name}.done; }}; {self.table[name][2]}"]


class Scheduling(unittest.TestCase):
    def play(self, table, lanes=("cpu",)):
        plan = Shell(self.out)
        plan.table = table
        over = plan.run(list(lanes), tick=0.01)
        with open(plan.at("plan.jsonl")) as f:
            return over, [json.loads(line) for line in f]

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = self.folder.name

    def tearDown(self):
        self.folder.cleanup()

    def started(self, rows):
        return [(r["stage"], r["gpu"]) for r in rows if "started" in r]

    def test_the_first_ready_stage_goes_to_each_free_gpu(self):
        table = {"a": ((), 9, "ok"), "b": (("c",), 9, "ok"), "c": (("a",), 9, "ok"), "d": (("a",), 9, "until test -e b.done; do sleep 0.05; done; ok"),
                 "e": (("b",), 9, "echo $CUDA_VISIBLE_DEVICES > gpu; ok")}
        over, rows = self.play(table, ("2", "5"))
        self.assertTrue(over)
        self.assertEqual(self.started(rows)[:4], [("a", "2"), ("c", "2"), ("d", "5"), ("b", "2")])
        with open(os.path.join(self.out, "gpu")) as f:
            self.assertEqual(f.read().strip(), [g for s, g in self.started(rows) if s == "e"][0])

    def test_a_stage_is_tried_twice_and_what_needs_it_is_left_out(self):
        table = {"a": ((), 9, "test -e seen && ok; touch seen; exit 3"), "b": ((), 9, "exit 4"), "c": (("b",), 9, "ok"),
                 "d": (("c",), 9, "ok"), "e": (("a",), 9, "ok")}
        over, rows = self.play(table)
        self.assertFalse(over)
        self.assertEqual(self.started(rows), [("a", "cpu"), ("a", "cpu"), ("b", "cpu"), ("b", "cpu"), ("e", "cpu")])
        self.assertEqual([r["stage"] for r in rows if "skipped" in r], ["c", "d"])
        before = len(rows)
        table["b"] = ((), 9, "ok")
        over, rows = self.play(table)                       # started again: what is done is passed over
        self.assertTrue(over)
        self.assertEqual([s for s, _ in self.started(rows[before:])], ["b", "c", "d"])

    def test_a_stage_that_hangs_is_killed_with_all_it_started(self):
        t0 = time.time()
        over, rows = self.play({"a": ((), 0.1, "sleep 60 & echo $! > pid; wait")})
        self.assertFalse(over)
        self.assertLess(time.time() - t0, 5)
        self.assertEqual([r["failed"] for r in rows if "failed" in r], ["too slow"] * 2)
        with open(os.path.join(self.out, "pid")) as f:
            pid = int(f.read())
        while self.alive(pid) and time.time() - t0 < 10:     # it is killed, but a busy machine has not ended it yet
            time.sleep(0.05)
        self.assertFalse(self.alive(pid))

    @staticmethod
    def alive(pid):
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] != "Z"
        except FileNotFoundError:
            return False


if __name__ == "__main__":
    unittest.main()
