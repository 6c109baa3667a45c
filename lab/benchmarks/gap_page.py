"""Write the page on how gaps grow, and its plot, from the losses that lab/benchmarks/gap_law.py kept.

python lab/benchmarks/gap_page.py lab/docs/evidence/gap-law.csv
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from gap_law import Line, fit, lines, power, tables
from gap_parts import Part, read
from gap_tables import ONE_ULP
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

LEAST, MOST = 0.02, 10.0
"""Shares in per cent that the plot shows."""
PAGE = """# How gaps grow

`python lab/benchmarks/gap_page.py lab/docs/evidence/gap-law.csv` wrote this page and its plot. The losses are those of
`lab/benchmarks/long_runs.py`, averaged over eight parts of each phase of the learning rate. All runs are native (torch
2.11.0, TE 2.20.2). Those of 20,000 steps are from an H100, `te-adam-bf16` and the others from H200s. Six of the H100's
runs, repeated on an H200, are equal to the bit over all 20,000 steps.

![Gap as a share of BF16's excess over million tokens, one panel for each schedule](gap-law.svg)

The gap is a share of BF16's excess over the entropy of the text, in per cent. Its interval of 95% over seeds is shaded.
Grey lines are the ends of phases of the learning rate: constant, decay, a tenth of the rate after it. Dashed lines are
fits of share = a (tokens / million)^b (parameters / million)^c to the first phase without its last part. A gap is
fitted if it is seen: the mean of these parts, weighted as in the fit, differs from zero over seeds. What is below
{least}% is not drawn.

## What they say

* **The gap grows, on text that never comes twice, too.** From 11 to 808 million tokens te-delayed's goes from 0.17% to
  1.63% of the excess, and te-block's from 0.10% to 0.68%. In per cent of the loss these are 0.018% and 0.007%, because
  the excess is 1.1% of the loss there.
* **200,000 steps separate the recipes**: te-delayed minus te-block is +0.95% ± 0.23% of the excess. The decay does
  it: at the end of the constant rate the difference is +0.03% ± 0.48%.
* **Between 50 and 250 million tokens the recipes cannot be distinguished.** The runs learn the same features of the
  text thousands of steps apart, in BF16 as in FP8. For a while the gap of one seed is up to 9% of the excess.
  `tiny-long` ends there, with 82 million tokens; `mini` gets there in its decay.
* **The law holds as far as it can be tested.** Fitted up to 295 million tokens, it predicts the last part of the
  constant phase inside both intervals, which are wide. Three sets of runs of `tiny` give te-delayed
  exponents of 0.38 to 0.45, each with an interval of at least ± 0.18. The law does not know the decay, in which
  te-delayed's share doubles. On repeated text it predicts 0.56% where 2.12% ± 0.63% was measured: the rest is learned
  by heart ([long runs](long-runs.md)).
* **There is no law over sizes.** `mini` (14 million parameters) shows a gap of te-delayed, but one law for `tiny` and
  `mini` predicts 1.59% for the last part of `tiny`, where 0.72% ± 0.50% was measured. `small` (117 million, on repeated
  text) shows no gap in its constant phase. At the end of its decay te-block is 0.54% ± 0.43% of the excess below BF16,
  and te-delayed's interval holds zero. Of so many intervals of 95%, some exclude zero by chance.
* **The gate of 300 steps** of `tiny` sees +0.007% ± 0.004% of the loss for te-block, as at the end of 200,000, and
  +0.003% ± 0.010% for te-delayed, which ends at 0.018%
  ([gaps](../../../docs/theory.md#is-my-gap-normal)). So it does not show the order of the two.
* BF16 with the moments of Adam in BF16 (`te-adam-bf16`) shows no gap in 20,000 steps. NVFP4, emulated, needs more than
  520 s for 20,000 steps next to other runs, and was not finished.
* Runs of 24,000 and 200,000 steps, and those of `small`, have no replica of BF16, so the noise of one BF16 run is part
  of their gaps, and both recipes share it. Their intervals over seeds hold it.

## Tables
"""


def _draw(axes: Axes, some: Sequence[Line]) -> None:
    """Draw the gap of each recipe with its interval over the tokens, and its fit as a dashed line."""
    for i, line in enumerate(some):
        color = f"C{i}"
        found = [r for phase in line.phases.values() for r in phase]
        tokens = [r.tokens for r in found]
        mean, low, high = (
            100 * np.array([getattr(r.interval, side) for r in found]) for side in ("mean", "low", "high")
        )
        axes.plot(tokens, mean, f"{color}o-", markersize=3, label=line.label)
        axes.fill_between(tokens, np.maximum(low, LEAST / 2), np.maximum(high, LEAST / 2), color=color, alpha=0.15)
        if line.seen and (law := fit([line])):
            span = np.geomspace(line.fitted[0].tokens, line.fitted[-1].tokens, 20)
            axes.plot(span, 100 * power(np.array([span, span]), law.a, law.b), f"{color}--")
    for before, after in pairwise(some[0].phases.values()):
        axes.axvline(math.sqrt(before[-1].tokens * after[0].tokens), color="0.7", linewidth=0.8)
    axes.set(xscale="log", yscale="log", ylim=(LEAST, MOST), title=some[0].schedule, xlabel="million tokens")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize="x-small", loc="upper left")


def plot(found: Sequence[Part], path: Path) -> None:
    """Draw one panel for each schedule. The file is the same for the same losses."""
    made = [line for line in lines(found) if line.label != ONE_ULP]
    schedules = list(dict.fromkeys(line.schedule for line in made))
    rows = -(-len(schedules) // 2)
    figure = Figure(figsize=(10, 3.6 * rows), layout="constrained")
    for i, schedule in enumerate(schedules):
        axes = figure.add_subplot(rows, 2, i + 1)
        _draw(axes, [line for line in made if line.schedule == schedule])
        if i % 2 == 0:
            axes.set_ylabel("% of BF16's excess")
    with matplotlib.rc_context({"svg.hashsalt": "fp8-parity"}):
        figure.savefig(path, metadata={"Date": None})


def main(path: Path) -> None:
    found = read([path])
    plot(found, path.with_suffix(".svg"))
    path.with_suffix(".md").write_text(PAGE.format(least=LEAST) + "\n" + "\n".join(tables(found)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
