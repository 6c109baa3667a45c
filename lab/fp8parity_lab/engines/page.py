"""The tables and the page of trainers and engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fp8parity.records.cell import CONTROL_RECIPE
from fp8parity.report import render
from fp8parity.report.blocks import Block, Document, Facts, Headline, Paragraph, Section, Table, Tone

from fp8parity_lab.engines.scores import FLIPS, K3, MEAN, NAMES, OUTSIDE, P99, Number, Numbers

UNITS = {MEAN: ("|d|, mnat", 1e3), P99: ("p99", 1e3), K3: ("k3, unat", 1e6)}
UNITS |= {OUTSIDE[0]: ("off 10%", 100), OUTSIDE[1]: ("off 20%", 100), FLIPS: ("flips", 100)}
"""The head of a number's column, and what it is multiplied by."""
WITH_INTERVAL = (MEAN, K3)
"""The numbers that are printed with their intervals. The page has those of all."""
ABOUT = (
    "d is the trainer's log-probability of a token minus the engine's, in nats. |d|: mean and 99th percentile, in "
    "1e-3 nats; k3: the mean of exp(d) - 1 - d, in 1e-6 nats; off 10% and 20%: the percentage of importance ratios "
    "exp(d) outside [0.9, 1.1] and [0.8, 1.25]; flips: the percentage of places with another most likely token. "
    "Intervals are 95% over whole sequences."
)
VARIANTS_ARE = (
    "A recipe as trainer and as an engine, mean |d| in 1e-3 nats. engine: all differences at once. The others have "
    "one: batch, whole sequences in batches of 32 in another order; attention, in FP32 without a fused kernel; "
    "chunks, a KV cache filled 16 tokens at a time; decode, token by token after the prompt. 0: equal to the bit."
)

Pairs = Mapping[tuple[str, str], Numbers]


@dataclass(frozen=True)
class Matrix:
    """What ``engines matrix`` found: pairs by (trainer, engine), and by (recipe, variant of the engine)."""

    pairs: Pairs
    variants: Pairs
    facts: Mapping[str, str]
    not_run: Mapping[str, str]


def digits(value: float) -> str:
    """Return two or three significant digits, and 0 for what is exactly equal."""
    size = abs(value)
    return "0" if size == 0 else f"{value:.0f}" if size >= 100 else f"{value:.{2 + (size >= 1)}g}"


def shown(name: str, number: Number, interval: bool = True) -> str:
    """Return a number in its unit."""
    value, low, high = (digits(x * UNITS[name][1]) for x in number)
    return f"{value} [{low}, {high}]" if interval else value


def table(first: str, rows: Mapping[str, Numbers], title: str = "", every: bool = False) -> Table:
    """Return the numbers of pairs, one a row."""
    names = [n for n in NAMES if n in next(iter(rows.values())).found]
    made = [(label, *(shown(n, of.found[n], every or n in WITH_INTERVAL) for n in names)) for label, of in rows.items()]
    return Table(title, (first, *(UNITS[n][0] for n in names)), made, numbers=1)


def tables(pairs: Pairs, every: bool = False) -> list[Table]:
    """Return a table of engines for each trainer."""
    trainers = dict.fromkeys(trainer for trainer, _ in pairs)
    engines = {of: {engine: n for (trainer, engine), n in pairs.items() if trainer == of} for of in trainers}
    return [table("engine", rows, f"trainer {of}", every) for of, rows in engines.items()]


def square(pairs: Pairs, name: str, first: str = "trainer", second: str = "engine") -> Table:
    """Return one number of all pairs: rows by the first name, columns by the second."""
    columns = list(dict.fromkeys(b for _, b in pairs))
    rows = [
        (a, *(shown(name, pairs[a, b].found[name], False) for b in columns)) for a in dict.fromkeys(a for a, _ in pairs)
    ]
    return Table(f"{UNITS[name][0]} by {first} (rows) and {second}", (first, *columns), rows, numbers=1)


def printed(found: Matrix) -> list[Block]:
    """Return the blocks for a terminal of 80 columns."""
    blocks = [block for made in tables(found.pairs) for block in (Paragraph(f"\n{made.title}"), made)]
    return [*blocks, Paragraph(f"\n{ABOUT}"), *_left_out(found)]


def _left_out(found: Matrix) -> list[Block]:
    return [Paragraph(f"Not run: {name} {why}.") for name, why in found.not_run.items()]


def document(found: Matrix) -> Document:
    """Make the page."""
    base = found.pairs[CONTROL_RECIPE, CONTROL_RECIPE].found
    text = f"BF16 against itself: mean |d| {shown(MEAN, base[MEAN])} mnat, k3 {shown(K3, base[K3])} unat"
    facts: list[Block] = [Headline(text, Tone.PLAIN), Facts(list(found.facts.items())), *_left_out(found)]
    squares = [square(found.pairs, name) for name in (MEAN, K3, OUTSIDE[0])]
    variants = square(found.variants, MEAN, "recipe", "variant")
    sections = [
        Section("matrix", "Trainer x engine", [Paragraph(ABOUT), *squares]),
        Section("variants", "What of the engine differs", [Paragraph(VARIANTS_ARE), variants]),
        Section("pairs", "All numbers with their intervals", tables(found.pairs, every=True)),
    ]
    return Document("Trainer and engine", "Trainer and engine", facts, sections)


def as_json(found: Matrix) -> str:
    """Render all numbers as JSON."""
    pairs = [{"trainer": a, "engine": b} | plain(of) for (a, b), of in found.pairs.items()]
    variants = [{"recipe": a, "variant": b} | plain(of) for (a, b), of in found.variants.items()]
    more = {"facts": dict(found.facts), "not run": dict(found.not_run)}
    return render.as_json({**more, "pairs": pairs, "variants": variants})


def plain(of: Numbers) -> dict[str, Any]:
    """Return the numbers of a pair for JSON."""
    return {name: number._asdict() for name, number in of.found.items()}


RENDERERS = render.renderers(document, as_json)
