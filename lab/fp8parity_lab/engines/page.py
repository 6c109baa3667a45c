"""The tables of ``fp8parity engines``, and their page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp8parity.report import render
from fp8parity.report.blocks import Block, Document, Facts, Headline, Paragraph, Section, Subsection, Table, Tone

from fp8parity_lab.engines.scores import FLIPS, K3, MEAN, NAMES, OFF_10, OFF_20, P99, Compared, Number, Numbers, Trend

UNITS = {MEAN: ("|d|, mnat", 1e3), P99: ("p99", 1e3), K3: ("k3, unat", 1e6)}
UNITS |= {OFF_10: ("off 10%", 1e2), OFF_20: ("off 20%", 1e2), FLIPS: ("flips", 1e2)}
"""The head of a number's column, and what it is multiplied by."""
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
INVARIANCE_IS = (
    "A row's result in a batch against the row alone, whose other rows are zero: equal to the bit, or the least SQNR "
    "of 8 rows. For wgrad it is the row's contribution: the other rows' output gradients are zero."
)
Pairs = Mapping[tuple[str, str], Numbers]


@dataclass(frozen=True)
class EnginePage:
    """A page: a sentence, facts, sections, and the numbers for programs."""

    headline: Headline
    facts: Mapping[str, str]
    sections: Sequence[Section]
    data: Mapping[str, Any]
    notes: Sequence[str] = ()


def document(page: EnginePage) -> Document:
    """Make the blocks of a page."""
    header: list[Block] = [page.headline, Facts(list(page.facts.items())), *map(Paragraph, page.notes)]
    return Document("Trainer and engine", "Trainer and engine", header, page.sections)


def as_json(page: EnginePage) -> str:
    """Render the facts and numbers as JSON."""
    return render.as_json({"facts": dict(page.facts), "notes": list(page.notes), **page.data})


RENDERERS = render.renderers(document, as_json)


def digits(value: float) -> str:
    """Return two or three significant digits, and 0 for what is exactly equal."""
    size = abs(value)
    return "0" if size == 0 else f"{value:.0f}" if size >= 100 else f"{value:.{2 + (size >= 1)}g}"


def shown(name: str, number: Number, interval: bool = True) -> str:
    """Return a number in its unit."""
    value, low, high = (digits(x * UNITS[name][1]) for x in number)
    return f"{value} [{low}, {high}]" if interval else value


def table(first: str, rows: Mapping[str, Numbers], title: str = "", intervals: Sequence[str] = NAMES) -> Table:
    """Return the numbers of pairs, one a row."""
    names = [n for n in NAMES if n in next(iter(rows.values())).found]
    made = [(label, *(shown(n, of.found[n], n in intervals) for n in names)) for label, of in rows.items()]
    return Table(title, (first, *(UNITS[n][0] for n in names)), made, numbers=1)


def tables(pairs: Pairs, intervals: Sequence[str] = NAMES) -> list[Table]:
    """Return a table of engines for each trainer."""
    rows = {of: {b: n for (a, b), n in pairs.items() if a == of} for of, _ in pairs}
    return [table("engine", found, f"trainer {of}", intervals) for of, found in rows.items()]


def titled(made: Sequence[Table]) -> list[Subsection]:
    """Return tables below their titles, which Markdown leaves out."""
    return [Subsection(t.title, [t]) for t in made]


def square(pairs: Pairs, name: str, first: str, second: str) -> Table:
    """Return one number of all pairs: rows by the first name, columns by the second."""
    columns = list(dict.fromkeys(b for _, b in pairs))
    rows = [
        (of, *(shown(name, pairs[of, b].found[name], False) for b in columns))
        for of in dict.fromkeys(a for a, _ in pairs)
    ]
    return Table(f"{UNITS[name][0]}: {first} (rows), {second}", (first, *columns), rows, numbers=1)


def matrix(pairs: Pairs, variants: Pairs, facts: Mapping[str, str], not_run: Mapping[str, str]) -> EnginePage:
    """Return the page of all pairs. The first one is the baseline."""
    base = next(iter(pairs.values())).found
    text = f"BF16 against itself: mean |d| {shown(MEAN, base[MEAN])} mnat, k3 {shown(K3, base[K3])} unat"
    squares = [square(pairs, name, "trainer", "engine") for name in (MEAN, K3, OFF_10)]
    parts = square(variants, MEAN, "recipe", "variant")
    sections = [
        Section("matrix", "Trainer x engine", [Paragraph(ABOUT), *titled(squares)]),
        Section("variants", "What of the engine differs", [Paragraph(VARIANTS_ARE), parts]),
        Section("pairs", "All numbers with their intervals", titled(tables(pairs))),
    ]
    data = {
        "pairs": [{"trainer": a, "engine": b} | plain(of) for (a, b), of in pairs.items()],
        "variants": [{"recipe": a, "variant": b} | plain(of) for (a, b), of in variants.items()],
    }
    return EnginePage(Headline(text, Tone.PLAIN), facts, sections, data, left_out(not_run))


def printed(pairs: Pairs) -> list[Block]:
    """Return the matrix for a terminal of 80 columns: a table a trainer, with the intervals of two numbers."""
    return [block for made in tables(pairs, (MEAN, K3)) for block in (Paragraph(f"\n{made.title}"), made)]


def left_out(not_run: Mapping[str, str]) -> list[str]:
    """Say which recipes did not run."""
    return [f"Not run: {name} {why}." for name, why in not_run.items()]


def plain(of: Numbers) -> dict[str, Any]:
    """Return the numbers of a pair for JSON."""
    return {name: number._asdict() for name, number in of.found.items()}


def invariance(
    found: Mapping[tuple[str, str], tuple[Mapping[str, float], str]], facts: Mapping[str, str], notes: Sequence[str]
) -> EnginePage:
    """Return the page of batch invariance: by recipe and GEMM, the dB by batch and what the scales allow."""
    texts = {
        of: {b: "equal" if v == math.inf else f"{v:.0f} dB" for b, v in dbs.items()} for of, (dbs, _) in found.items()
    }
    rows = [(*of, *texts[of].values(), theory) for of, (_, theory) in found.items()]
    equal = sum(set(by.values()) == {"equal"} for by in texts.values())
    made = Table("Batch invariance", ("recipe", "GEMM", *next(iter(texts.values())), "by its scales"), rows)
    data = {"rows": [{"recipe": r, "gemm": g, "theory": found[r, g][1]} | by for (r, g), by in texts.items()]}
    text = f"{equal} of {len(rows)} GEMMs give a row the same bits whatever is next to it."
    section = Section("invariance", "Batch invariance", [made, Paragraph(INVARIANCE_IS)])
    return EnginePage(Headline(text, Tone.PLAIN), facts, [section], data, notes)


def judged(own: Numbers, rows: Sequence[Compared], trend: Trend | None, facts: Mapping[str, str]) -> EnginePage:
    """Return the page of two logs. It is red above the baseline, and for a rising trend."""
    worse = [r.name for r in rows if r.worse]
    blocks: list[Block] = [table("pair", {"both logs": own}, intervals=(MEAN, K3))]
    said = [f"above the baseline: {', '.join(worse)}" if worse else "no number above the baseline"] if rows else []
    if rows:
        cells = [
            (UNITS[r.name][0], *(shown(r.name, x) for x in (r.number, r.baseline, r.excess)), "above" * r.worse)
            for r in rows
        ]
        blocks.append(Table("Baseline", ("number", "pair", "baseline", "excess", ""), cells))
    if trend:
        slope = " ".join(f"{digits(1e3 * x)}" for x in trend.slope)
        said.append(f"mean |d| is {trend.word} over {trend.steps} steps")
        ends = f"from {digits(1e3 * trend.first)} to {digits(1e3 * trend.last)} mnat"
        blocks.append(Paragraph(f"Mean |d| {ends}; slope (value, low, high): {slope} mnat per 100 steps."))
    red = bool(worse or (trend and trend.word == "rising"))
    said += [] if rows else [f"mean |d| {shown(MEAN, own.found[MEAN])} mnat, without a baseline to judge it by"]
    answer = "; ".join(said)
    compared = {r.name: {"baseline": r.baseline._asdict(), "excess": r.excess._asdict()} for r in rows}
    data = {"red": red, "numbers": plain(own), "compared": compared, "trend": trend and trend._asdict()}
    headline = Headline(f"{answer[0].upper()}{answer[1:]}.", Tone.BAD if red else Tone.GOOD if rows else Tone.PLAIN)
    return EnginePage(headline, facts, [Section("judged", "Numbers", [*blocks, Paragraph(ABOUT)])], data)
