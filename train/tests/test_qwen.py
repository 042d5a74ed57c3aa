"""The Qwen3.6-shaped network against published results (tests/data/goldens/qwen3_5) and against itself."""
import os
import sys
import tempfile
import unittest
from dataclasses import replace

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

try:
    import torch
except ImportError:
    torch = None

GOLDENS = os.path.join(os.path.dirname(__file__), "../../tests/data/goldens/qwen3_5")


def worst(a, b):
    return (a.float() - b.float()).abs().max().item()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Qwen(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        torch.set_num_threads(1)

    def goldens(self, name):
        from carat_train import safetensors_file
        return {k: torch.from_numpy(v[1].copy()) for k, v in safetensors_file.read(os.path.join(GOLDENS, name)).items()}

    def network(self, **changes):
        """A small one with nothing at its start value."""
        from carat_train.qwen import Qwen as Net
        from carat_train.shapes import PRESETS
        m = Net(replace(PRESETS["smoke-qwen"], vocab=300, **changes)).place(128, "cpu")
        with torch.no_grad():
            for n, p in m.named_parameters():
                if p.ndim < 2 and "A_log" not in n and "dt_bias" not in n:
                    p.add_(torch.empty_like(p).uniform_(-0.3, 0.3))
                if "in_proj_a" in n:
                    p.normal_(0, 0.1)
        return m.eval()

    def test_published_logits_states_and_drafts(self):
        from carat_train import export_qwen
        m, want = export_qwen.load(GOLDENS).place(256, "cpu"), self.goldens("goldens.safetensors")
        with torch.no_grad():
            past = [None] * len(m.layers)
            z, _, seen = m.trace(want["input_ids"][None].long(), taps=range(8), past=past)
            self.assertLess(worst(torch.cat(seen), want["layer_out"]), 1e-4)
            self.assertLess(worst(m.logits(z)[0], want["logits"]), 1e-4)
            for i in (0, 6):
                self.assertLess(worst(past[i][1][0], want[f"state.{i}.recurrent"]), 1e-4)
            want = self.goldens("goldens_mtp.safetensors")
            ids, head = want["seq"][None].long(), export_qwen.load_head(GOLDENS, m.s).place(256, "cpu")
            z = m.trace(ids)[0]
            h = head.step(m.embed(ids[:, 1:]), z[:, :-1], [])
            self.assertLess(worst(h[0], want["mtp_hidden"]), 1e-4)
            for n, drafts, logits in zip(want["chain_len"].tolist(), want["chain_ids"].long(), want["chain_logits"]):
                fed = torch.cat((ids[0, :n], drafts))[None]  # the chain behind pair n - 2, whose token is number n - 1
                for j, y in enumerate(head.chain(m, fed[:, :n + 2], z[:, :n + 2])[:3]):
                    self.assertLess(worst(m.logits(y[0, n - 2]), logits[j]), 1e-4)

    def test_blocks_give_the_inverse(self):
        from carat_train import delta
        for c in (16, 64):
            a = torch.rand(3, 2, c, c, dtype=torch.float64).tril(-1)
            a[0] = torch.ones(c, c).tril(-1)
            got = delta.substituted(a)
            self.assertLess(worst(got @ (a + torch.eye(c)), torch.eye(c, dtype=torch.float64)), 1e-9)

    def test_chunks_give_what_the_recurrence_gives(self):
        from carat_train import delta
        for t, chunk in ((1, 64), (63, 64), (130, 64), (50, 7)):
            q, k, v = (torch.randn(2, t, 3, n, dtype=torch.float64) for n in (8, 8, 6))
            k = torch.nn.functional.normalize(k, dim=-1)
            k[:, t // 3:t // 2] = k[:, :1]                   # repeated keys, as of repeated tokens
            g, beta = -torch.rand(2, t, 3, dtype=torch.float64) * 0.2, torch.rand(2, t, 3, dtype=torch.float64)
            args = [x.requires_grad_() for x in (q, k, v, g, beta, torch.randn(2, 3, 8, 6, dtype=torch.float64))]
            found = [f(*args[:5], args[5], *more) for f, more in ((delta.sequential, ()), (delta.chunked, (chunk,)))]
            for a, b in zip(*found):
                self.assertLess(worst(a, b), 1e-5)
            a, b = (torch.autograd.grad(sum(y.pow(2).sum() for y in f), args) for f in found)
            for x, y in zip(a, b):
                self.assertLess(worst(x, y), 1e-4 * max(1.0, x.abs().max().item()))

    def test_cached_passes_give_what_one_pass_gives(self):
        from carat_train import qwen_cache
        m, ids = self.network(), torch.randint(0, 300, (2, 70))
        with torch.no_grad():
            whole, past = m.trace(ids)[0], [None] * len(m.layers)
            parts = [m.trace(ids[:, a:b], past=past)[0] for a, b in ((0, 33), (33, 34), (34, 70))]
            self.assertLess(worst(torch.cat(parts, 1), whole), 1e-4)
            cache = qwen_cache.Cache(m, [ids[0, :40].tolist(), ids[1, :3].tolist()], 30)
            for i in range(20):
                self.assertLess(max(worst(cache.hidden[0], whole[0, 39 + i]), worst(cache.hidden[1], whole[1, 2 + i])), 1e-4)
                cache.step(torch.stack((ids[0, 40 + i], ids[1, 3 + i])))

    def test_what_is_exported_is_the_same_function(self):
        from carat_train import export_qwen
        from carat_train.nextn import Nextn
        for tied in (True, False):
            m, ids = self.network(tied=tied), torch.randint(0, 300, (1, 50))
            head = Nextn(m.s).place(128, "cpu").eval()
            with tempfile.TemporaryDirectory() as at, torch.no_grad():
                for p in list(m.parameters()) + list(head.parameters()):
                    p.copy_(p.bfloat16().float())
                export_qwen.export(m.state_dict(), m.s, f"{at}/body")
                export_qwen.export_head(head, f"{at}/head")
                export_qwen.join(f"{at}/body", f"{at}/head", f"{at}/all")
                back = export_qwen.load(f"{at}/all").place(128, "cpu")
                z = back.trace(ids)[0]
                self.assertLess(worst(back.logits(z), m.logits(m.trace(ids)[0])), 0.03)
                again = export_qwen.load_head(f"{at}/all", m.s).place(128, "cpu")
                for a, b in zip(again.chain(back, ids, z), head.chain(back, ids, z)):
                    self.assertLess(worst(a, b), 1e-4)


if __name__ == "__main__":
    unittest.main()
