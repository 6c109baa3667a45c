"""A small model in the style of nanoGPT's GPT-2, its loss and its data: docs/your-model.md gates it."""

import torch
import torch.nn.functional as F
from fp8parity.workload.own import OwnModel
from fp8parity.workload.schedule import Schedule
from torch import nn

SUCCESSORS = torch.randint(64, (64, 4), generator=torch.Generator().manual_seed(0))
SCHEDULE = Schedule(steps=100, rows=8, length=64, lr=5e-3, warmup=15, tail=30, validation_every=50, validation_rows=32)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.ln_1, self.attn, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ln_2, self.fc, self.out = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.causal = True

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class GPT2(nn.Module):
    def __init__(self, dim=64, layers=2, vocab=64, length=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.h, self.ln_f = nn.ModuleList(Block(dim) for _ in range(layers)), nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        for embedding in (self.wte, self.wpe):
            nn.init.normal_(embedding.weight, std=0.1)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def text(seed, step):
    """Each of 64 tokens has four successors. Put your own data here."""
    ids = [torch.randint(64, (8,))]
    for _ in range(64):
        ids.append(SUCCESSORS[ids[-1], torch.randint(4, (8,))])
    return torch.stack(ids[:-1], 1), torch.stack(ids[1:], 1)


def next_token(module, ids, targets):
    return F.cross_entropy(module(ids).float().flatten(0, 1), targets.flatten())


def gpt2():
    return OwnModel("my-gpt2", lambda seed: GPT2(), next_token, text, SCHEDULE, corpus="chain", blocks="h")
