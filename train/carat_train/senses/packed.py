"""Sequences one after the other in one row, none of which sees another."""
import torch


class Packed:
    """starts: int32 [n + 1], where each begins and the last ends (repeated where fewer are there); longest: of them.

    kernel: "flash" (CUDA, half precision) or "plain" (anywhere).
    """

    def __init__(self, starts, longest, kernel="plain"):
        self.starts, self.longest, self.kernel = starts, longest, kernel

    def both_ways(self, q, k, v):
        """q, k, v [N, H, D]; everything in a sequence sees everything."""
        return self.attend(q, k, v, False, 0)

    def attend(self, q, k, v, causal, window):
        if self.kernel == "flash":
            left, right = (window - 1 if window else None), (0 if causal else None)
            return torch.ops.aten._flash_attention_forward(q, k, v, self.starts, self.starts, self.longest, self.longest, 0.0, causal, False,
                                                           scale=1.0, window_size_left=left, window_size_right=right)[0]
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        bounds, out = self.starts.tolist(), []
        for a, b in zip(bounds, bounds[1:]):
            if a == b:
                continue
            scores = torch.einsum("qhd,khd->hqk", q[a:b], k[a:b]).float()
            if causal:
                at = torch.arange(b - a, device=q.device)
                gap = at[:, None] - at[None]
                scores = scores.masked_fill((gap < 0) | (gap >= (window or 1 << 30)), float("-inf"))
            out.append(torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1).to(v.dtype), v[a:b]))
        out.append(v.new_zeros(len(q) - bounds[-1], *v.shape[1:]))      # behind the last sequence
        return torch.cat(out)


class Causal:
    """How a layer type of the text attends: what layers.attend takes as a mask, over one packed row [1, N, H, D]."""

    def __init__(self, packed, window):
        self.packed, self.window = packed, window

    def attend(self, q, k, v):
        return self.packed.attend(q[0], k[0], v[0], True, self.window).flatten(1)[None]
