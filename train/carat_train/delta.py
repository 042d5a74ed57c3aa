"""The gated delta rule (Gated DeltaNet, arXiv 2412.06464): token by token, and in chunks (the WY form).

State S [B, H, K, V] per value head, float32. With a = exp(g): S <- a S; S <- S + k (beta (v - S^T k))^T; o = S^T q.
"""
import torch
import torch.nn.functional as F

CHUNK, BASE = 64, 16


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


def substituted(a):
    """(I + A)^-1, A [..., C, C] strictly lower triangular, C a power of two times BASE: rows one after the other within blocks of
    BASE, which are then joined in pairs by products. A series in A would lose everything where keys repeat."""
    c = a.shape[-1]

    def blocks(size, row, col):
        """[M, C / size / 2 or C / size, size, size]: every second block under the diagonal, or those on it."""
        n = c // size // 2 if row else c // size
        x = a.reshape(-1, n, 2, size, n, 2, size)[:, :, row, :, :, col] if row else a.reshape(-1, n, size, n, size)
        return x.diagonal(dim1=1, dim2=3).movedim(-1, 1)
    d = blocks(BASE, 0, 0)
    t = torch.eye(BASE, device=a.device, dtype=a.dtype).expand_as(d).clone()
    for i in range(1, BASE):
        t[..., i, :i] = -(d[..., i, :i, None] * t[..., :i, :i]).sum(-2)
    size = BASE
    while size < c:
        first, last = t[:, 0::2], t[:, 1::2]
        under = -(last @ blocks(size, 1, 0) @ first)
        t = torch.cat((torch.cat((first, torch.zeros_like(first)), -1), torch.cat((under, last), -1)), -2)
        size *= 2
    return t.reshape(a.shape)


class Inverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [..., C, C]."""

    @staticmethod
    def forward(ctx, a):
        if a.is_cuda:
            t = substituted(a)
        else:
            eye = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
            t = torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False, unitriangular=True)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx, grad):
        t, = ctx.saved_tensors
        return -(t.mT @ grad @ t.mT).tril(-1)


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def cut(x, chunk):
    """[B, T, H, ...] -> [B * H, N, C, ...]; what fills the last chunk up changes nothing: beta 0, g 0."""
    rest = -x.shape[1] % chunk
    x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, rest)) if rest else x
    return x.unflatten(1, (-1, chunk)).movedim(3, 1).flatten(0, 1).contiguous()


def first(q, k, v, g, beta, chunk):
    """What chunks are made of, before the inverse: A; read = q k^T with its decays; q, k scaled to the chunk's ends."""
    q, k, v, g, beta = (cut(x, chunk) for x in (q, k, v, g, beta))
    total = g.cumsum(-1)
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~below, float("-inf")).exp()
    a = (beta[..., None] * (wide(k) @ wide(k).mT) * decay).tril(-1)
    read = ((q @ k.mT) * decay).to(q.dtype)
    inside, after = total.exp(), (total[..., -1:] - total).exp()
    return a, read, (q * inside[..., None]).to(q.dtype), (k * after[..., None]).to(k.dtype), k, v, beta, beta * inside, inside[..., -1]


def second(t, read, q, k_end, k, v, beta, beta_in, end):
    """A chunk as a map of states, S -> move S + add, and of its outputs, S -> out S + own."""
    u = (t * beta[..., None, :]).to(v.dtype) @ v
    w = (t * beta_in[..., None, :]).to(k.dtype) @ k
    move = end[..., None, None] * torch.eye(k.shape[-1], device=k.device, dtype=end.dtype) - wide(k_end.mT @ w)
    return move, wide(k_end.mT @ u), q - read @ w, read @ u


def third(out, states, own):
    return out @ states.to(out.dtype) + own


def chunked(q, k, v, g, beta, state=None, chunk=CHUNK):
    """As sequential; only the states go from chunk to chunk. q, k, v in the precision of the products, the rest float32."""
    b, t, h, _ = q.shape
    a, *parts = first(q, k, v, g, beta, chunk)
    move, add, out, own = second(Inverse.apply(a), *parts)
    s = move.new_zeros(b * h, q.shape[-1], v.shape[-1]) if state is None else wide(state).flatten(0, 1)
    states = []
    for m, n in zip(move.unbind(1), add.unbind(1)):
        states.append(s)
        s = torch.baddbmm(n, m, s)
    o = third(out, torch.stack(states, 1), own)
    return o.flatten(1, 2).unflatten(0, (b, h))[:, :, :t].transpose(1, 2), s.unflatten(0, (b, h))
