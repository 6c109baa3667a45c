"""FP8 attention with exponentials cut at the largest probability, in FP64, next to Transformer Engine's.

Without a mask: the output's SQNR (on a GPU next to the measured one). With a causal mask: the cut that gives the output
of golden/records/found/h100-x2-gate-mps.zip, and the gradients that it gives.
"""

import math
from dataclasses import replace

import torch
from fp8parity.checks import attention
from fp8parity.numerics.operands import sqnr
from fp8parity.recipes.registry import RECIPES, adapter
from scipy.optimize import brentq

recipe = RECIPES["te-delayed"]


def parts(shape):
    """Return q, k, v, dy in FP64 [batch, heads, length, head_dim], exponentials and their sums."""
    drawn = attention.draw(attention.Case("", shape))
    q, k, v, dy = (t.double().transpose(1, 2) for t in drawn)
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    if shape.causal:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    return drawn, (q, k, v, dy), exponentials, exponentials.sum(-1, keepdim=True)


def gradients(tensors, p, output):
    """Return dq and dk of right probabilities and an output that may be wrong."""
    q, k, v, dy = tensors
    ds = p * (dy @ v.mT - (dy * output).sum(-1, keepdim=True))
    return ds @ k, ds.mT @ q


for length in (64, 128, 192, 256, 320, 384, 512, 576, 1024):
    shape = replace(attention.BASE, length=length, causal=False)
    drawn, (_, _, v, _), exponentials, total = parts(shape)
    exact, largest = exponentials / total @ v, (exponentials / total).max()
    cut = exponentials.clamp(max=largest) / total @ v
    line = f"{length:5} keys, largest probability {largest:.3f}: cut {sqnr(exact, cut):5.2f} dB"
    if torch.cuda.is_available():
        vendor = adapter(recipe.adapter).fp8_attention()
        found = attention.settled(vendor, recipe, shape, [t.cuda() for t in drawn])["output"]
        line += f", measured {sqnr(exact, found.cpu().double().transpose(1, 2)):5.2f} dB"
    print(line)

SOUND, SEEN = {"output": 25.50, "dq": 19.53, "dk": 19.55}, {"output": 10.32, "dq": 13.78, "dk": 13.82}
"""SQNRs in dB of the causal case when it is right, and of the gate with MPS."""
_, tensors, exponentials, total = parts(attention.SHAPE)
p = exponentials / total
exact = p @ tensors[2]


def with_noise(name, cut):
    """Add the noise of FP8 to that of a cut."""
    return -10 * math.log10(10 ** (-cut / 10) + 10 ** (-SOUND[name] / 10))


def output(at):
    return exponentials.clamp(max=at) / total @ tensors[2]


at = brentq(lambda at: with_noise("output", sqnr(exact, output(at))) - SEEN["output"], 0.1, 0.99)
pairs = zip(("dq", "dk"), gradients(tensors, p, exact), gradients(tensors, p, output(at)), strict=True)
print(f"causal, cut at {at:.3f} for an output of {SEEN['output']} dB:")
for name, right, wrong in pairs:
    print(f"  {name} {with_noise(name, sqnr(right, wrong)):.2f} dB, seen {SEEN[name]}")
