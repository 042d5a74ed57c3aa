"""The network with eyes and ears against what the reference implementation computes (tests/data/goldens/gemma4_audio)."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

try:
    import numpy as np
    import torch
except ImportError:
    torch = None

GOLDENS = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "goldens", "gemma4_audio")


def worst(a, b):
    return (a.float() - b.float()).abs().max().item() / b.float().abs().max().item()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Senses(unittest.TestCase):
    def setUp(self):
        from carat_train.senses import export
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.model = export.load(GOLDENS)

    def tearDown(self):
        torch.set_grad_enabled(True)

    def golden(self, name):
        from carat_train import safetensors_file
        return {k: torch.from_numpy(np.array(a)) for k, (_, a) in safetensors_file.read(os.path.join(GOLDENS, name)).items()}

    def logits(self, g, soft):
        from carat_train.senses.packed import Packed
        ids = g["input_ids"].long()
        there = (ids == self.model.s.image_id) | (ids == self.model.s.audio_id)
        source = torch.where(there, torch.cumsum(there.long(), 0) - 1, torch.full_like(ids, -1))
        z = self.model.language_model(ids, torch.arange(len(ids)), Packed(torch.tensor([0, len(ids)]), len(ids)), soft, source)
        return self.model.logits(z)

    def test_pictures(self):
        from carat_train.senses import eyes
        from carat_train.senses.packed import Packed
        g = self.golden("goldens_image.safetensors")
        height, width, rows = eyes.size_of(*g["image.0.rgb"].shape[:2], 70, patch=4)
        self.assertEqual(rows, g["num_soft_tokens"].item())
        pixels, at = eyes.patches(eyes.resize(g["image.0.rgb"][None], height, width), patch=4)
        soft = self.model.see(pixels, at, Packed(torch.tensor([0, len(at)]), len(at)))
        self.assertLess(worst(soft, g["vision.soft_tokens"]), 1e-4)
        self.assertLess((self.logits(g, soft) - g["logits"]).abs().max().item(), 1e-3)

    def test_sounds(self):
        from carat_train.senses import ears
        g = self.golden("goldens_sound.safetensors")
        soft = []
        for i, wanted in enumerate(g["audio.num_tokens"].tolist()):
            pcm = g[f"audio.{i}.pcm"].float() / 32768
            mel = ears.log_mel(pcm[None], ears.mel_filters())
            self.assertEqual(ears.tokens_of(len(pcm)), wanted)
            # more silence behind it changes nothing
            padded = torch.nn.functional.pad(mel, (0, 0, 0, 40))
            soft.append(self.model.hear(padded, torch.tensor([mel.shape[1]]))[:wanted])
        soft = torch.cat(soft)
        self.assertLess(worst(soft, g["audio.soft_tokens"]), 1e-4)
        self.assertLess((self.logits(g, soft) - g["logits"]).abs().max().item(), 1e-3)

    def test_marks_lie_under_what_was_drawn(self):
        from carat_train.senses import eyes, marks, pictures
        board = pictures.canvas((144, 288), (250, 250, 250))
        pictures.draw_shape(board, "square", 96, 96, 60, (200, 0, 0), (250, 250, 250), "red")
        height, width, rows = eyes.size_of(144, 288, 18)
        self.assertEqual((height, width, rows), (144, 288, 18))
        _, at = eyes.patches(torch.zeros(1, height, width, 3))
        drawn = torch.from_numpy(np.array(board.quick(144, 288)[1]))[None]
        found, cells = marks.of_patches(drawn, at, height, width)
        red = pictures.mark_of("red", "square")
        self.assertEqual(sorted(set(found.tolist())), [0, red])
        marked = {tuple(p) for m, p in zip(found.tolist(), at.tolist()) if m}
        self.assertEqual(marked, {(x, y) for x in (2, 3) for y in (2, 3)})      # 27 to 69 of 144 pixels, middles at 40 and 56
        self.assertEqual(cells[0].item(), 0)
        self.assertEqual(cells[-1].item(), 8)


if __name__ == "__main__":
    unittest.main()
