"""The gated delta rule (Gated DeltaNet, arXiv 2412.06464): token by token, and in chunks (the WY form).

State S [B, H, K, V] per value head, float32. With a = exp(g): S <- a S; S <- S + k (beta (v - S^T k))^T; o = S^T q.
"""
import torch
import torch.nn.functional as F

CHUNK = 64


def sequential(q, k, v, g, beta, state=None):
    """q, k [B, T, H, K], v [B, T, H, V], g and beta [B, T, H] -> o [B, T, H, V] and the last state."""
    b, t, h, _ = q.shape
    s = q.new_zeros(b, h, q.shape[-1], v.shape[-1]) if state is None else state
    out = []
    for i in range(t):
        s = s * g[:, i].exp()[..., None, None]
        change = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhkv,bhk->bhv", s, k[:, i]))
        s = s + k[:, i, :, :, None] * change[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", s, q[:, i]))
    return torch.stack(out, 1), s


class Inverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [..., C, C], by substitution: a series in A loses everything where keys repeat."""

    @staticmethod
    def forward(ctx, a):
        eye = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
        t = torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False, unitriangular=True)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx, grad):
        t, = ctx.saved_tensors
        return -(t.mT @ grad @ t.mT).tril(-1)


def pairs(q, k, g, beta):
    """Of chunks q, k [..., C, K], g and beta [..., C]: A, the read-out q k^T with its decays, and the sums of g."""
    c = q.shape[-2]
    total = g.cumsum(-1)
    below = torch.ones(c, c, dtype=torch.bool, device=q.device).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~below, float("-inf")).exp()
    a = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    return a, (q @ k.mT) * decay, total


def chunked(q, k, v, g, beta, state=None, chunk=CHUNK):
    """As sequential; whole chunks at once, the state passed from one to the next."""
    b, t, h, _ = q.shape
    rest = -t % chunk

    def cut(x):
        """[B, T, H, ...] -> [B, H, N, C, ...]; what fills the last chunk up changes nothing: beta 0, g 0."""
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, rest)) if rest else x
        return x.unflatten(1, (-1, chunk)).movedim(3, 1)
    q, k, v, g, beta = (cut(x) for x in (q, k, v, g, beta))
    a, read, total = pairs(q, k, g, beta)
    inverse = Inverse.apply(a)
    u = (inverse * beta[..., None, :]) @ v
    w = (inverse * (beta * total.exp())[..., None, :]) @ k
    q = q * total.exp()[..., None]
    k = (k * (total[..., -1:] - total).exp()[..., None]).mT
    end = total[..., -1].exp()[..., None, None]
    s = q.new_zeros(b, h, q.shape[-1], v.shape[-1]) if state is None else state
    out = []
    parts = zip(*(x.unbind(2) for x in (q, k, u, w, read, end)))
    for qn, kn, un, wn, rn, en in parts:
        change = un - wn @ s
        out.append(qn @ s + rn @ change)
        s = s * en + kn @ change
    return torch.stack(out, 2).flatten(2, 3)[:, :, :t].transpose(1, 2), s
