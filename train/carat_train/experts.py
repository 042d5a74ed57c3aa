"""The routed half of a mixture-of-experts layer: router and experts, in the published parameter layout."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from .layers import gelu, rms


class Router(nn.Module):
    """Reads the un-normed stream; softmax over all experts, the best k renormalized, then scaled per expert."""

    def __init__(self, d, experts, top_k):
        super().__init__()
        self.top_k, self.root = top_k, d ** -0.5
        self.proj = nn.Linear(d, experts, bias=False)
        self.scale = nn.Parameter(torch.ones(d))
        self.per_expert_scale = nn.Parameter(torch.ones(experts))
        self.balance = None                                # last call's balance loss, read by the trainer

    def forward(self, h):
        r = rms(h) * self.scale.to(h.dtype) * self.root
        p = torch.softmax(self.proj(r).float(), -1)
        weight, index = p.topk(self.top_k, -1)
        if self.training:
            used = F.one_hot(index, p.shape[-1]).float().mean((0, 1)).sum(0)
            self.balance = (used * p.mean((0, 1))).sum() * p.shape[-1] / self.top_k
        weight = weight / weight.sum(-1, keepdim=True)
        return weight * self.per_expert_scale[index], index


class Experts(nn.Module):
    """gate_up_proj [E, 2*ff, d] (gate rows first), down_proj [E, d, ff]."""

    def __init__(self, d, ff, experts):
        super().__init__()
        self.ff = ff
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * ff, d) * d ** -0.5)
        self.down_proj = nn.Parameter(torch.randn(experts, d, ff) * ff ** -0.5)

    def forward(self, u, weight, index):
        """u [B, T, d], weight and index [B, T, k] -> [B, T, d]. Tokens are sorted by expert, one product per expert."""
        shape, k = u.shape, index.shape[-1]
        u, flat = u.reshape(-1, shape[-1]), index.reshape(-1)
        order = flat.argsort(stable=True)
        ends = torch.bincount(flat, minlength=len(self.gate_up_proj)).cumsum(0)
        rows = u[order // k]
        out = self.grouped(rows, ends) if rows.is_cuda else self.looped(rows, ends)
        out = out * weight.reshape(-1)[order, None].to(out.dtype)
        return torch.zeros_like(u).index_add_(0, order // k, out.to(u.dtype)).view(shape)

    def looped(self, rows, ends):
        out, start = [], 0
        for e, end in enumerate(ends.tolist()):
            gate, up = F.linear(rows[start:end], self.gate_up_proj[e]).chunk(2, -1)
            out.append(F.linear(gelu(gate) * up, self.down_proj[e]))
            start = end
        return torch.cat(out)

    def grouped(self, rows, ends):
        """One grouped product for all experts (bf16 only)."""
        offs, half = ends.to(torch.int32), torch.bfloat16
        gate, up = torch._grouped_mm(rows.to(half), self.gate_up_proj.to(half).mT, offs=offs).chunk(2, -1)
        return torch._grouped_mm(gelu(gate) * up, self.down_proj.to(half).mT, offs=offs)
