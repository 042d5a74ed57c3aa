"""Cross entropy to the target's own distribution, on a GPU as one compiled expression, on a CPU a few rows at a time."""
import torch
import torch.nn.functional as F

from .layers import capped

ROWS = 64                                                   # rows of logits at once on a CPU: they stay in its cache
BEST = 32


def probabilities(z, head, cap):
    """The target's distribution after hidden states z, as soft_loss takes it: on a GPU all of it in half the bytes (a
    relative error of 2^-9 does not matter to what learns from it), on a CPU its BEST tokens: probabilities, then ids."""
    if z.is_cuda:
        return torch.softmax(capped(z, head, cap), -1).to(torch.bfloat16)
    k, flat = min(BEST, len(head)), z.flatten(0, -2)
    out = torch.empty(len(flat), 2 * k)
    for y, x in zip(out.split(ROWS), flat.split(ROWS)):
        value, index = F.linear(x, head).topk(k, -1, sorted=False)
        value = value.float() if cap is None else cap * torch.tanh(value.float() / cap)
        y[:, :k], y[:, k:] = torch.softmax(value, -1), index
    return out.view(*z.shape[:-1], 2 * k)


class InPieces(torch.autograd.Function):
    """Sum over rows of weight * cross entropy; its gradients are made on the way, so that no logits are kept."""

    @staticmethod
    def forward(ctx, z, head, cap, p, weight, half):
        kind = torch.bfloat16 if half else torch.float32
        table, rows = head.detach().to(kind), z.detach().to(kind)
        need_head, total = head.requires_grad, 0.0
        dz, dhead = torch.empty(z.shape, dtype=kind), torch.zeros(head.shape) if need_head else None
        for at in range(0, len(rows), ROWS):
            y, w, (goal, token) = rows[at:at + ROWS], weight[at:at + ROWS, None], p[at:at + ROWS].chunk(2, -1)
            token = token.long()
            q = (y @ table.t()).float()
            slope = None
            if cap is not None:
                t = torch.tanh(q / cap)
                q, slope = cap * t, 1 - t * t
            q = torch.log_softmax(q, -1)
            total += -((goal * q.gather(1, token)).sum(-1, keepdim=True) * w).sum().item()
            g = q.exp_().scatter_add_(1, token, -goal).mul_(w)
            g = (g if slope is None else g * slope).to(kind)
            dz[at:at + ROWS] = g @ table
            if need_head:
                dhead += (g.t() @ y).float()
        ctx.save_for_backward(dz.to(z.dtype), dhead)
        return torch.tensor(total)

    @staticmethod
    def backward(ctx, scale):
        dz, dhead = ctx.saved_tensors
        return dz * scale.to(dz.dtype), None if dhead is None else dhead * scale, None, None, None, None


def soft_loss(z, head, cap, p, weight, half=False):
    """z [..., d], p [..., V] the target's probabilities, weight [...]: the weighted mean. half: bf16 products on a CPU."""
    if z.is_cuda:
        q = capped(z, head, cap)
        each = torch.logsumexp(q, -1) - (p * q).sum(-1)
        return (each * weight).sum() / weight.sum().clamp_min(1e-6)
    use = (weight > 0).flatten().nonzero().flatten()
    z, p, weight = z.flatten(0, -2)[use], p.flatten(0, -2)[use], weight.flatten()[use]
    return InPieces.apply(z, head, cap, p, weight, half) / weight.sum().clamp_min(1e-6)
