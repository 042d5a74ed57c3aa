"""The networks against themselves: cached and whole passes, folded scalars, drafters packed and alone, experts."""
import os
import sys
import unittest
from dataclasses import replace

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

try:
    import torch
except ImportError:
    torch = None


def worst(a, b):
    return (a.float() - b.float()).abs().max().item()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Networks(unittest.TestCase):
    def setUp(self):
        from carat_train.gemma4 import Gemma4
        from carat_train.shapes import PRESETS
        torch.manual_seed(3)
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.shapes = {k: replace(PRESETS[k], vocab=300, window=20) for k in ("smoke", "smoke-moe")}
        self.ids = torch.randint(0, 300, (2, 70))
        self.models = {k: Gemma4(s).place(128, "cpu").eval() for k, s in self.shapes.items()}
        for m in self.models.values():                     # norms and scalars away from their start values
            for p in m.parameters():
                if p.ndim == 1:
                    p.mul_(torch.empty_like(p).uniform_(0.7, 1.3))

    def tearDown(self):
        torch.set_grad_enabled(True)

    def test_cached_passes_give_what_one_pass_gives(self):
        for name, m in self.models.items():
            whole, past = m.trace(self.ids)[0], [None] * len(m.layers)
            parts = [m.trace(self.ids[:, a:b], past=past)[0] for a, b in ((0, 33), (33, 34), (34, 70))]
            self.assertLess(worst(torch.cat(parts, 1), whole), 1e-4, name)

    def test_the_window_hides_what_is_outside(self):
        m = self.models["smoke"]
        m.mask["full_attention"].window = 20               # every layer sliding: reach is layers * (window - 1)
        m.mask["sliding_attention"].window = 4
        other = self.ids.clone()
        other[:, 0] = (other[:, 0] + 1) % 300
        a, b = m.trace(self.ids)[0], m.trace(other)[0]
        reach = 5 * 3 + 19
        self.assertEqual(worst(a[:, reach + 1:], b[:, reach + 1:]), 0.0)
        self.assertGreater(worst(a[:, :reach], b[:, :reach]), 0.0)

    def test_folding_scalars_keeps_the_function(self):
        from carat_train.layers import fold
        for name, m in self.models.items():
            before = m.logits(m.trace(self.ids)[0])
            fold(m.layers, [0.5, 1.5, 0.8, 1.2, 0.6, 1.1])
            self.assertLess(worst(m.logits(m.trace(self.ids)[0]), before), 2e-4, name)

    def test_experts_give_what_a_sum_over_the_chosen_gives(self):
        layer = self.models["smoke-moe"].layers[0]
        h = torch.randn(2, 9, 64)
        weight, index = layer.router(h)
        got = layer.experts(h, weight, index)
        for b in range(2):
            for t in range(9):
                want = torch.zeros(64)
                for w, e in zip(weight[b, t], index[b, t]):
                    gate, up = (layer.experts.gate_up_proj[e] @ h[b, t]).chunk(2)
                    want += w * (layer.experts.down_proj[e] @ (torch.nn.functional.gelu(gate, approximate="tanh") * up))
                self.assertLess(worst(got[b, t], want), 1e-4)

    def test_blocks_packed_give_what_each_gives_alone(self):
        from carat_train.dflash import DFlash
        m, anchors = self.models["smoke"], torch.tensor([1, 5, 17, 33, 50])
        d = DFlash(m.s, ff=64, heads=2, hd=16, kv=1, taps=3)
        for p in d.parameters():
            if p.ndim == 2:
                torch.nn.init.normal_(p, std=0.2)
        seen = m.trace(self.ids, d.taps)[2]
        d.place(70, "cpu", blocks=5).aim(anchors)
        packed = d.draft(m, self.ids, seen)
        for i, c in enumerate(anchors.tolist()):
            d.place(c, "cpu", blocks=1).aim(anchors[i:i + 1])
            alone = d.draft(m, self.ids, [x[:, :c] for x in seen])
            self.assertLess(worst(alone[:, 0], packed[:, i]), 1e-4)

    def test_assistant_rows_give_what_one_query_gives(self):
        from carat_train.assistant import Assistant
        m = self.models["smoke"]
        a = Assistant(m.s, d=32, ff=64).place(70, "cpu")
        z, kv, _ = m.trace(self.ids)
        fed = torch.roll(self.ids, -1, 1)
        y, _ = a.step(m.embed(fed), z, kv)
        n = 47                                             # the newest token's position; keys 0..46 are cached
        short = {k: tuple(x[:, :n] for x in pair) for k, pair in kv.items()}
        short["sliding_attention"] = tuple(x[:, n - m.s.window + 1:] for x in short["sliding_attention"])
        b = Assistant(m.s, d=32, ff=64)
        b.load_state_dict(a.state_dict())
        b.place(70, "cpu")
        b.rope = {k: tuple(r[n - 1:n] for r in pair) for k, pair in a.rope.items()}
        for k in b.mask:
            b.mask[k].window = 0                           # one query, and only what it may see is given
        alone, _ = b.step(m.embed(self.ids[:, n:n + 1]), z[:, n - 1:n], short)
        self.assertLess(worst(alone[:, 0], y[:, n - 1]), 1e-4)


if __name__ == "__main__":
    unittest.main()
