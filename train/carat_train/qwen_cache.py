"""States, keys and values of many sequences of Qwen's shape at once, for continuations.extend."""
import torch

from .qwen import rotate


class Cache:
    """Row b holds positions 0..length[b] - 1 of its own sequence; what pads the prompts leaves the states as they are."""

    def __init__(self, model, prompts, new):
        device = model.norm.weight.device
        self.model, self.length = model, torch.tensor([len(p) for p in prompts], device=device)
        ids = torch.zeros(len(prompts), int(self.length.max()), dtype=torch.long)
        for row, p in zip(ids, prompts):
            row[:len(p)] = torch.tensor(p)
        ids, rows = ids.to(device), torch.arange(len(prompts), device=device)
        inside = (torch.arange(ids.shape[1], device=device) < self.length[:, None])[..., None]
        x, self.state = model.embed(ids), []
        cos, sin = (r[:ids.shape[1]] for r in model.rope)
        for l in model.layers:
            if l.full:
                x, pair = l.attend(x, cos, sin, model.mask)
                self.state.append(tuple(torch.cat((y, y.new_zeros(y.shape[0], new, *y.shape[2:])), 1) for y in pair))
            else:
                q, k, v, g, beta, z, u = l.before(x)
                o, s = model.rule(q, k, v, g * inside, beta * inside)
                x = l.after(x, o, z)
                last = self.length[:, None] + torch.arange(model.s.taps - 1, device=device)      # u has taps - 1 rows in front
                self.state.append((u[rows[:, None], last], s))
        self.hidden = model.norm(x)[rows, self.length - 1]

    def step(self, ids):
        m, pos, rows = self.model, self.length, torch.arange(len(ids), device=ids.device)
        x = m.embed(ids[:, None])
        for i, l in enumerate(m.layers):
            if l.full:
                x = self.attend(l, x, pos, rows, *self.state[i])
            else:
                u, s = self.state[i]
                q, k, v, g, beta, z, u = l.before(x, u)
                q, k, v = q.float(), k.float(), v.float()
                s = s * g[:, 0].exp()[..., None, None]
                change = beta[:, 0, :, None] * (v[:, 0] - (s * k[:, 0, :, :, None]).sum(2))
                s = s + k[:, 0, :, :, None] * change[:, :, None]
                o = (s * q[:, 0, :, :, None]).sum(2)[:, None]
                x, self.state[i] = l.after(x, o, z), (u[:, 1:], s)
        self.hidden, self.length = m.norm(x)[:, 0], pos + 1

    def attend(self, l, x, pos, rows, k_all, v_all):
        at = l.self_attn
        u = l.input_layernorm(x)
        q, gate = at.q_proj(u).view(len(rows), 1, at.heads, 2 * at.hd).chunk(2, -1)
        cos, sin = (r[pos][:, None] for r in self.model.rope)
        turn = lambda y: rotate(y.transpose(0, 1), cos[:, 0], sin[:, 0]).transpose(0, 1)        # noqa: E731: a row a position
        k_all[rows, pos] = turn(at.k_norm(at.k_proj(u).view(len(rows), 1, at.kv, at.hd)))[:, 0].to(k_all.dtype)
        v_all[rows, pos] = at.v_proj(u).view(len(rows), at.kv, at.hd).to(v_all.dtype)
        seen = torch.arange(k_all.shape[1], device=pos.device)[None] <= pos[:, None]
        q = turn(at.q_norm(q))[:, 0].view(len(rows), at.kv, -1, at.hd)
        scores = (q @ k_all.permute(0, 2, 3, 1).to(q.dtype)).float() * at.hd ** -0.5
        p = torch.softmax(scores.masked_fill(~seen[:, None, None], float("-inf")), -1).to(q.dtype)
        o = (p @ v_all.transpose(1, 2).to(q.dtype)).flatten(1)[:, None]
        return l.feed(x + at.o_proj(o * torch.sigmoid(gate.flatten(2))))
