"""Count how often ``fp8parity engines judge`` and its intervals are wrong, on drawn differences.

    python lab/benchmarks/engines_errors.py

Each sequence has 30 tokens with Gaussian differences of its own size, 0.05 times 0.5 to 1.5: tokens of a sequence are
alike, so that only whole sequences are independent. 400 trials with 40 sequences each; a trend has 10 steps of 8.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from fp8parity_lab.engines.scores import Pair, Scores, above, trend

TRIALS, SEQUENCES, TOKENS, SIZE = 400, 40, 30, 0.05
STEPS = tuple(10 * step for step in range(10) for _ in range(8))
GROWTH = (1.0, 1.1, 1.2, 1.3, 1.5)
"""The size of the differences relative to the baseline's."""


def drawn(seed: int, sequences: int = SEQUENCES, growth: float = 1.0) -> Pair:
    """Return a pair with random differences."""
    rng = np.random.default_rng(seed)
    sizes = growth * SIZE * rng.uniform(0.5, 1.5, sequences)
    engine, tokens = np.full((sequences, TOKENS), -2.0), [np.arange(TOKENS)] * sequences
    trainer = engine + rng.normal(0, sizes[:, None], (sequences, TOKENS))
    return Pair(Scores(tokens, list(trainer)), Scores(tokens, list(engine)))


def main() -> None:
    whole = drawn(10**6, 2_000)
    truth = {name: number.value for name, number in whole.numbers().found.items()}
    held: Counter[str] = Counter()
    for seed in range(TRIALS):
        found = drawn(seed).numbers().found
        held.update(name for name, x in found.items() if x.low <= truth[name] <= x.high)
    print("| the 95% interval holds the truth | true value | in trials |\n|---|---|---|")
    for name in truth:
        print(f"| {name.replace('|', '')} | {truth[name]:.2g} | {held[name] / TRIALS:.1%} |")
    print("\n| differences, relative to the baseline's | judged above |\n|---|---|")
    for growth in GROWTH:
        pairs = ((drawn(s, growth=growth).numbers(s), drawn(s + TRIALS).numbers(s + TRIALS)) for s in range(TRIALS))
        print(f"| {growth:g} | {np.mean([any(row.worse for row in above(*pair)) for pair in pairs]):.1%} |")
    words = Counter(trend(drawn(seed, len(STEPS)), STEPS).word for seed in range(TRIALS))
    shares = [f"{words[word] / TRIALS:.1%} are called {word}" for word in ("rising", "falling")]
    print(f"\nWithout a trend, {' and '.join(shares)}.")


if __name__ == "__main__":
    main()
