"""Train a bigram model in NumPy, as a program of a user does: for tests of trainers. It starts in 0.2 s."""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

VOCABULARY, ROWS, WIDTH = 32, 512, 16


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """Round to a grid of ``bits`` of mantissa, scaled by the largest value, as FP8 per tensor."""
    if not bits:
        return x
    scale = 448 / np.abs(x).max()
    mantissa, exponent = np.frexp(x * scale)
    return np.ldexp(np.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent) / scale


def batch(rng: np.random.Generator, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = rng.integers(VOCABULARY, size=ROWS)
    return x, (table[x].cumsum(1) > rng.random((ROWS, 1))).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("seed", "steps", "data_seed", "bits"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--keys", default="step,loss,grad_norm,learning_rate")
    parser.add_argument("--print", action="store_true")
    a = parser.parse_args()
    table = np.random.default_rng(0).dirichlet(np.full(VOCABULARY, 0.1), VOCABULARY)
    weights, data = np.random.default_rng(a.seed), np.random.default_rng([a.seed, a.data_seed])
    params = [weights.normal(size=(VOCABULARY, WIDTH)) * 0.5, weights.normal(size=(WIDTH, VOCABULARY)) * 0.5]
    moments = [np.zeros_like(p) for p in params for _ in (0, 1)]
    noise = np.random.default_rng() if a.fault == "noise" else None
    with nullcontext(sys.stdout) if a.print else (a.out / "log.jsonl").open("w") as log:
        for step in range(a.steps):
            if step == 10 and a.fault == "crash":
                sys.stdout.write("::error::owned\n\x1b[31mout of memory\n")
                sys.exit(3)
            if step == 10 and a.fault == "hang":
                time.sleep(600)
            if step == 30 and a.fault == "early":
                return
            x, y = batch(data, table)
            e, w = params
            h, wq = rounded(e[x], a.bits), rounded(w, a.bits)
            z = h @ wq
            z -= z.max(1, keepdims=True)
            p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
            loss = -np.log(p[np.arange(ROWS), y]).mean()
            p[np.arange(ROWS), y] -= 1
            p /= ROWS / (2 if a.fault == "count" else 1)
            if noise is not None:
                p *= 1 + 1e-3 * noise.normal(size=p.shape)
            d = rounded(p, a.bits and a.bits - 1)
            de = np.zeros_like(e)
            np.add.at(de, x, d @ wq.T)
            grads = [de, h.T @ d]
            norm = float(np.sqrt(sum((g**2).sum() for g in grads)))
            lr = a.lr * min(1, (step + 1) / 10) * (1.03 if a.fault == "rate" else 1)
            for i, (param, g) in enumerate(zip(params, grads, strict=True)):
                m, v = moments[2 * i], moments[2 * i + 1]
                m += 0.1 * (g - m)
                v += 0.05 * (g * g - v)
                param -= lr * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.95 ** (step + 1))) + 1e-8)
            value = float("nan") if a.fault == "nan" and step == 40 else loss
            row = {"step": step + 1, "loss": value, "grad_norm": norm, "learning_rate": lr}
            log.write(json.dumps({key: row[key] for key in a.keys.split(",")}) + "\n")
            if a.print and step % 7 == 0:
                sys.stderr.write("a warning, and no log\n")


if __name__ == "__main__":
    main()
