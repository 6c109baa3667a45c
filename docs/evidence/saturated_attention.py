"""FP8 attention without a mask: Transformer Engine's output, and FP64 with exponentials cut at the largest probability.

Without a GPU it prints the second column alone.
"""

import math
from dataclasses import replace

import torch
from fp8parity.checks import attention
from fp8parity.numerics.operands import sqnr
from fp8parity.recipes.registry import RECIPES, adapter

recipe = RECIPES["te-delayed"]
for length in (64, 128, 192, 256, 320, 384, 512, 576, 1024):
    case = attention.Case("no mask", replace(attention._BASE, length=length, causal=False))
    drawn = attention._draw(case)
    q, k, v, _ = (t.double().transpose(1, 2) for t in drawn)
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    total = exponentials.sum(-1, keepdim=True)
    exact = exponentials / total @ v
    largest = (exponentials / total).max()
    cut = exponentials.clamp(max=largest) / total @ v
    line = f"{length:5} keys, largest probability {largest:.3f}: cut {sqnr(exact, cut):5.2f} dB"
    if torch.cuda.is_available():
        vendor = adapter(recipe.adapter).fp8_attention()
        found = attention.settled(vendor, recipe, case.shape, [t.cuda() for t in drawn])["output"]
        line += f", measured {sqnr(exact, found.cpu().double().transpose(1, 2)):5.2f} dB"
    print(line)
