"""Train a small transformer in BF16, or with fake-quantized FP8 linears (--fp8)."""

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def fp8(x):
    """Round to E4M3 with one scale for the tensor, and pass the gradient through."""
    scale = 448 / x.detach().abs().amax().float().clamp(min=1e-12)
    rounded = ((x.float() * scale).to(torch.float8_e4m3fn).float() / scale).to(x.dtype)
    return x + (rounded - x).detach()


class Linear(nn.Linear):
    quantized = False

    def forward(self, x):
        return F.linear(fp8(x), fp8(self.weight)) if self.quantized else super().forward(x)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm_1, self.qkv, self.proj = nn.LayerNorm(dim), Linear(dim, 3 * dim), Linear(dim, dim)
        self.norm_2, self.up, self.down = nn.LayerNorm(dim), Linear(dim, 4 * dim), Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--fp8", action="store_true")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(args.seed)
Linear.quantized = args.fp8
model = nn.Sequential(nn.Embedding(64, 64), Block(64), Block(64), nn.LayerNorm(64), nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
successors = torch.randint(64, (64, 4), generator=torch.Generator().manual_seed(0))  # each token has four
args.out.mkdir(parents=True, exist_ok=True)
with open(args.out / "log.jsonl", "w") as log:
    for step in range(1, args.steps + 1):
        tokens = [torch.randint(64, (8,))]
        for _ in range(32):
            tokens.append(successors[tokens[-1], torch.randint(4, (8,))])
        ids = torch.stack(tokens, 1)
        lr = 3e-3 * min(1, step / 20) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        optimizer.param_groups[0]["lr"] = lr
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        row = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "learning_rate": lr}
        log.write(json.dumps(row) + "\n")
