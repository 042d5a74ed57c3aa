"""The routed half of a mixture-of-experts layer: router and experts, in the published parameter layout."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from .layers import gelu, rms


def chosen(index, experts):
    """[..., k] ids -> [..., k, experts] flags."""
    return index[..., None] == torch.arange(experts, device=index.device)


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
            used = chosen(index, p.shape[-1]).float().mean((0, 1)).sum(0)
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
        """u [B, T, d], weight and index [B, T, k] -> [B, T, d]. All experts run, those not chosen with weight 0: for a few
        small ones two plain products are faster than sorting the tokens, and nothing depends on where they go."""
        count = len(self.gate_up_proj)
        share = (chosen(index, count) * weight[..., None]).sum(-2)                             # [B, T, E]
        gate, up = F.linear(u, self.gate_up_proj.flatten(0, 1)).unflatten(-1, (count, 2, self.ff)).unbind(-2)
        y = gelu(gate) * up * share[..., None].to(gate.dtype)                                  # [B, T, E, ff]
        return F.linear(y.flatten(-2), self.down_proj.permute(1, 0, 2).flatten(1)).to(u.dtype)
