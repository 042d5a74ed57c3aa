"""Continue prompts with cached keys and values: greedy or at a temperature."""
import torch

from .tokenizer import BOS, EOS


@torch.no_grad()
def continue_ids(model, ids, new, ends, temperature=0.0, seed=1):
    """ids: one prompt (list). Returns the new ids, the end token included. The model must be placed, kernel "plain"."""
    device = model.norm.weight.device
    rng = torch.Generator(device=device).manual_seed(seed)
    past, out = [None] * len(model.layers), []
    feed = torch.tensor([ids], device=device)
    for _ in range(new):
        logits = model.logits(model.trace(feed, past=past)[0][:, -1])[0].float()
        if temperature > 0:
            nxt = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=rng).item()
        else:
            nxt = logits.argmax().item()
        out.append(nxt)
        if nxt in ends:
            break
        feed = torch.tensor([[nxt]], device=device)
    return out


def end_tokens(tok):
    return {EOS, tok.token_to_id("<turn|>"), tok.token_to_id("<|tool_response>")}


def prompt_ids(tok, text):
    return [BOS] + tok.encode(text, add_special_tokens=False).ids
