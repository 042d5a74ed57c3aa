"""Muon for matrices, AdamW for the rest, and the rate schedule."""
import torch


def orthogonal(x, steps=5):
    """Newton-Schulz towards U V^T, for a stack [n, a, b] with a <= b."""
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


class Muon:
    """Momentum orthogonalized per matrix; matrices of one shape go through as one stack. Step size matches AdamW's."""

    def __init__(self, params, momentum=0.95, decay=0.1):
        self.momentum, self.decay, self.groups = momentum, decay, []
        shapes = {}
        for p in params:
            shapes.setdefault((p.ndim, *sorted(p.shape[-2:]), *p.shape[:-2]), []).append(p)
        for (_, a, b, *stack), ps in shapes.items():
            count = len(ps) * (stack[0] if stack else 1)
            self.groups.append((ps, torch.zeros(count, a, b, device=ps[0].device), 0.2 * b ** 0.5))

    @staticmethod
    def lay(x):
        """One matrix or a stack of them as [n, a, b] with a <= b."""
        x = x if x.ndim == 3 else x[None]
        return x if x.shape[1] <= x.shape[2] else x.transpose(1, 2)

    @torch.no_grad()
    def step(self, lr):
        for ps, m, scale in self.groups:
            g = torch.cat([self.lay(p.grad) for p in ps])
            m.lerp_(g, 1 - self.momentum)
            u = orthogonal(g.lerp_(m, self.momentum)).to(m.dtype)
            torch._foreach_mul_(ps, 1 - lr * self.decay)
            parts = u.split(len(m) // len(ps))
            turned = [x if p.shape[-2] <= p.shape[-1] else x.transpose(1, 2) for p, x in zip(ps, parts)]
            torch._foreach_add_(ps, [x.view(p.shape) if p.ndim == 3 else x[0] for p, x in zip(ps, turned)], alpha=-lr * scale)


BY_ADAM = ("embed_tokens", "lm_head", "router", "conv1d.weight", ".conv.weight", "position_embedding")   # in names of parameters


class Optimizer:
    """Matrices by Muon; table, norms, routers and scales by AdamW."""

    def __init__(self, model, lr, other_lr):
        ps = {n: p for n, p in model.named_parameters() if p.requires_grad}
        by_adam = {n for n, p in ps.items() if p.ndim < 2 or any(w in n for w in BY_ADAM)}
        self.lr, self.muon = lr, Muon([p for n, p in ps.items() if n not in by_adam])
        cuda = next(iter(ps.values())).is_cuda
        self.adam_params = [ps[n] for n in ps if n in by_adam]
        self.adam = torch.optim.AdamW(self.adam_params, lr=other_lr, betas=(0.9, 0.95), eps=1e-10,
                                      weight_decay=0.0, **({"fused": True} if cuda else {}))
        self.other_lr, self.params = other_lr, list(ps.values())

    def step(self, scale=1.0):
        for g in self.adam.param_groups:
            g["lr"] = self.other_lr * scale
        self.muon.step(self.lr * scale)
        self.adam.step()
        for p in self.params:
            p.grad = None


def schedule(x, warm=0.02, hold=0.6):
    """Warm up, hold, then fall linearly to zero; x is the share of the run that is done."""
    return min(1.0, x / warm) if x < hold else max(0.0, (1 - x) / (1 - hold))
