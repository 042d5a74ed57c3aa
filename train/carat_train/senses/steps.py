"""A step of the optimizer as one CUDA graph: its kernels are started at once, with no Python between them.

Every step has the same shapes, so one recording serves all; what changes (batch, rates) lies in tensors that are written over.
"""
import math

import torch

from ..optim import Optimizer, orthogonal
from .packed import Packed


class Adam:
    """AdamW without decay over one flat vector; the gradient's norm is clipped to 1 ahead."""

    def __init__(self, params, betas=(0.9, 0.95), eps=1e-10):
        self.params, self.betas, self.eps = params, betas, eps
        self.sizes = [p.numel() for p in params]
        self.m, self.v = (torch.zeros(sum(self.sizes), device=params[0].device) for _ in range(2))
        self.t = torch.zeros((), device=params[0].device)

    @torch.no_grad()
    def step(self, rate):
        g = torch.cat([p.grad.reshape(-1) for p in self.params])
        norm = g.norm()
        g.mul_((1 / (norm + 1e-6)).clamp(max=1.0))
        self.t.add_(1)
        self.m.lerp_(g, 1 - self.betas[0])
        self.v.lerp_(g * g, 1 - self.betas[1])
        m, v = (x / (1 - torch.exp(self.t * math.log(b))) for x, b in zip((self.m, self.v), self.betas))
        change = m / (v.sqrt() + self.eps) * rate
        torch._foreach_sub_(self.params, [c.view_as(p) for c, p in zip(change.split(self.sizes), self.params)])
        return norm


class Steps:
    """Runs trainer.look's loss backward and both optimizers. rates: written before each step."""

    def __init__(self, trainer, lr, other_lr):
        self.trainer, self.lr, self.other_lr = trainer, lr, other_lr
        both = torch.nn.ModuleList([trainer.model, trainer.marker])
        old = Optimizer(both, lr, other_lr)
        self.params, self.muon, self.adam = old.params, old.muon, Adam(old.adam_params)
        self.rates = torch.zeros(3, device=trainer.device)          # Muon's, Adam's, weight of the marks
        self.graph, self.given, self.out = None, None, None

    @torch.no_grad()
    def turn(self, rate):
        """Muon.step with a rate that lies in a tensor."""
        muon = self.muon
        for ps, m, scale in muon.groups:
            g = torch.cat([muon.lay(p.grad) for p in ps])
            m.lerp_(g, 1 - muon.momentum)
            u = orthogonal(g.lerp_(m, muon.momentum)).to(m.dtype) * (rate * scale)
            keep, parts = 1 - rate * muon.decay, u.split(len(m) // len(ps))
            turned = [x if p.shape[-2] <= p.shape[-1] else x.transpose(1, 2) for p, x in zip(ps, parts)]
            for p, x in zip(ps, turned):
                p.mul_(keep).sub_(x.reshape(p.shape))

    def work(self, b):
        each, _, marked, seen = self.trainer.look(b)
        ((each * b["weight"]).sum() + self.rates[2] * marked).backward()
        norm = self.adam.step(self.rates[1])
        self.turn(self.rates[0])
        for p in self.params:
            p.grad = None
        with torch.no_grad():
            sums, total = (torch.zeros(4, device=each.device) for _ in range(2))
            sums.index_add_(0, b["group"], each.detach() * b["weight"])
            total.index_add_(0, b["group"], b["weight"])
            return torch.stack((*(sums[:3] / total[:3].clamp(min=1e-9)), norm, marked.detach(), seen.float()))

    def record(self, make, hold):
        """hold: a lock that keeps other threads from the device meanwhile."""
        self.rates.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.work(make())
        torch.cuda.current_stream().wait_stream(side)
        self.given = make()
        with hold:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.out = self.work(self.given)
        self.forget()
        self.graph = graph

    def forget(self):
        """As if no step had been made."""
        for _, m, _ in self.muon.groups:
            m.zero_()
        for x in (self.adam.m, self.adam.v, self.adam.t):
            x.zero_()

    def step(self, b, scale, marks):
        """Mean losses of pictures, sounds and text, norm, loss of the marks, share of marks that are right."""
        self.rates.copy_(torch.tensor([self.lr * scale, self.other_lr * scale, marks]), non_blocking=True)
        if self.graph is None:
            return self.work(b)
        for k, to in self.given.items():
            if isinstance(to, Packed):
                to.starts.copy_(b[k].starts)
            else:
                to.copy_(b[k])
        self.graph.replay()
        return self.out.clone()
