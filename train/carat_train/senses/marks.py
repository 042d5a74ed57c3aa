"""What is where in a picture that was drawn by a seed: a map beside it, from which the eyes learn directly.

A mark is 0 (ground), 1 + 9 * colour + kind (shapes; the ninth kind is a bar) or SIGNS + sign - 33 (visible ASCII).
"""
import torch
import torch.nn as nn
from PIL import Image, ImageDraw

from ..layers import rms

SIGNS, CLASSES, CELLS = 100, 194, 9
FINE = 2                                                    # sides of a picture over those of its map


class Board:
    """A picture under way and its marks, drawn at once."""

    def __init__(self, width, height, ground):
        self.image, self.marks = Image.new("RGB", (width, height), ground), Image.new("L", (width, height), 0)
        self.draw, self.pen = ImageDraw.Draw(self.image), ImageDraw.Draw(self.marks)

    def text(self, at, text, font, fill, anchor):
        """anchor: "lm" or "mm"."""
        self.draw.text(at, text, font=font, fill=fill, anchor=anchor)
        left = at[0] - (font.getlength(text) / 2 if anchor[0] == "m" else 0)
        edges = [left + font.getlength(text[:i]) for i in range(len(text) + 1)]
        for sign, a, b in zip(text, edges, edges[1:]):
            if 33 <= ord(sign) < 127:
                self.pen.rectangle((a, at[1] - font.size * .45, max(a, b - 1), at[1] + font.size * .45), fill=SIGNS + ord(sign) - 33)

    def rotate(self, degrees, ground):
        self.image = self.image.rotate(degrees, Image.BILINEAR, fillcolor=ground)
        self.marks = self.marks.rotate(degrees, Image.NEAREST)

    def sized(self, height, width):
        return self.image if self.image.width == width else self.image.resize((width, height), Image.BOX)

    def quick(self, height, width):
        """(picture, marks of half its sides): three times as fast, a few values one off."""
        image = self.image if self.image.width == width else self.image.reduce(self.image.width // width)
        return image, self.marks.resize((width // FINE, height // FINE), Image.NEAREST)


class Marker(nn.Module):
    """What the eyes' patches say of themselves: the mark under the middle of each, and which ninth of the picture it is in."""

    def __init__(self, d):
        super().__init__()
        self.sign = nn.Linear(d, CLASSES + CELLS)

    def forward(self, x, marks, cells):
        """x [P, d]: the last block's; marks, cells [P], -1 where there is no picture. The mean loss, ground weighing little."""
        y = self.sign(rms(x)).float()
        there = marks >= 0
        weight = torch.where(marks > 0, 1.0, 0.04) * there
        loss = nn.functional.cross_entropy(y[:, :CLASSES], marks.clamp(min=0), reduction="none")
        place = nn.functional.cross_entropy(y[:, CLASSES:], cells.clamp(min=0), reduction="none")
        right = ((y[:, :CLASSES].detach().argmax(-1) == marks) & (marks > 0)).sum() / (marks > 0).sum().clamp(min=1)
        return (loss * weight).sum() / weight.sum().clamp(min=1) + 0.1 * (place * there).sum() / there.sum().clamp(min=1), right


def of_patches(marks, at, height, width, patch=16):
    """marks uint8 [n, h, w] of pictures that are seen at height x width; at [P, 2] of one picture's patches -> (marks, cells) [n * P]."""
    n, h, w = marks.shape
    x, y = ((at[:, i].float() + .5) * patch for i in (0, 1))
    found = marks[:, (y * h / height).long().clamp(max=h - 1), (x * w / width).long().clamp(max=w - 1)].long()
    cells = (y * 3 / height).long() * 3 + (x * 3 / width).long()
    return found.flatten(), cells.repeat(n)
