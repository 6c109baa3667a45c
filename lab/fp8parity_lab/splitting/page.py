"""Where the time of a step goes: tables for a terminal, CSV and JSON, and a page of plots."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from fp8parity.records.schema import TimeSplit
from fp8parity.records.times import Split
from fp8parity.report.blocks import (
    PLOTLY,
    Block,
    Document,
    Fold,
    Inline,
    Paragraph,
    Plot,
    Section,
    Subsection,
    Table,
    Tone,
    View,
)
from fp8parity.report.plots import COLORS, titled
from fp8parity.report.render import as_csv, html
from fp8parity.report.timed import interval
from fp8parity.report.timings import Renderers

from fp8parity_lab.splitting import Category
from fp8parity_lab.splitting.filters import Filtered, Proposal, propose, speeds

COLUMNS = (
    "device", "cell", "timed", "mode", "category", "bf16_seconds", "bf16_share", "recipe_seconds", "recipe_share",
)  # fmt: skip
LINEARS = (
    "Forward and backward of each linear alone, in turns with BF16. Linears of equal dimensions are timed once. A "
    'speed-up whose interval lies below 1 is marked "slower".'
)
SPLITS = 'Milliseconds of a step or block by what its kernels do. "idle" is the time in which no kernel runs.'
INDENTED: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}


def blocks_of(split: TimeSplit, timed: Sequence[Filtered] = ()) -> list[Block]:
    """Make the tables of kernels, linears, the filter, and blocks timed with it."""
    rows = [
        (str(c), _ms(a), f"{share(split.bf16, c):.1%}", _ms(b),
         f"{share(split.recipe, c):.1%}", f"{1e3 * (b - a):+.3f} ms")
        for c, a, b in _categories(split)
    ]  # fmt: skip
    rows.append(("step", _ms(split.bf16.seconds), "", _ms(split.recipe.seconds), "", ""))
    rows.append(("kernels", str(split.bf16.launches), "", str(split.recipe.launches), "", ""))
    columns = ("", "BF16", "share", split.cell.recipe, "share", "difference")
    found = speeds(split)
    lines = [f"  {s.names}: {s.ratio:.2f}x [{s.low:.2f}, {s.high:.2f}]{', slower' if s.slower else ''}" for s in found]
    alone = ["each linear alone, forward and backward:", *lines, _proposed(propose(split))] if found else []
    return [
        Paragraph(f"{split.cell.id}, {split.mode}, {split.tokens} tokens a step"),
        Table("Where the time goes", columns, rows, numbers=1),
        *(Paragraph(line) for line in (*alone, *(textwrap.fill(_measured(f), 78, **INDENTED) for f in timed))),
    ]


def share(side: Split, category: Category) -> float:
    """Return the share of a category in the time of a step, from 0 to 1."""
    return side.categories.get(category, 0.0) / sum(side.categories.values())


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def _proposed(proposal: Proposal | None) -> str:
    if proposal is None:
        return "no linear is clearly slower than BF16: no filter is proposed"
    return f"proposed filter: {', '.join(proposal.filters)} stay in BF16; predicted gain {proposal.gain - 1:+.1%}"


def _measured(found: Filtered) -> str:
    having, without = (f"{s.ratio:.3f}x [{s.low:.3f}, {s.high:.3f}]" for s in (found.having, found.without))
    return f"a block, {found.variant}: {having}, and {without} without the filter; {gain(found)}"


def gain(found: Filtered) -> str:
    """Return the words about what a filter gained."""
    low, middle, high = (f"{value - 1:+.1%}" for value in found.gain)
    return f"measured gain {middle} [{low}, {high}]"


def what(record: TimeSplit) -> str:
    """Return what a split divides, for example "llama3-8b, block, eager"."""
    return ", ".join(filter(None, (record.cell.model, "block" if record.block else "", record.variant)))


def _linears(record: TimeSplit) -> list[Block]:
    """Make the blocks of a page on each linear alone, the slowest first."""
    found = speeds(record)
    if not found:
        return []
    label, where = record.cell.label, f"{record.cell.label}, {what(record)}"
    columns = ("linears", "BF16, µs", f"{label}, µs", "speed-up [interval]")
    rows = []
    for s in found:
        ratio, tone = interval((s.low, s.ratio, s.high)), Tone.BAD if s.slower else Tone.PLAIN
        shown = Inline(ratio + " slower" * s.slower, tone=tone)
        rows.append((s.names, f"{1e6 * s.bf16_seconds:.1f}", f"{1e6 * s.seconds:.1f}", shown))
    table = Table(f"Linears of {where}", columns, rows, LINEARS)
    fold = Fold("The numbers of the linears", [table], open=any(s.slower for s in found))
    return [Subsection(f"Each linear alone: {where}", [Paragraph(_proposed(propose(record))), fold])]


def _categories(split: TimeSplit) -> list[tuple[Category, float, float]]:
    found = [(c, split.bf16.categories.get(c, 0.0), split.recipe.categories.get(c, 0.0)) for c in Category]
    return [(c, a, b) for c, a, b in found if a or b]


def _rows(split: TimeSplit) -> list[dict[str, Any]]:
    head = (split.provenance.device, split.cell.id, split.content, str(split.mode))
    rows = [(str(c), a, share(split.bf16, c), b, share(split.recipe, c)) for c, a, b in _categories(split)]
    return [dict(zip(COLUMNS, (*head, *row), strict=True)) for row in rows]


def _content(split: TimeSplit) -> dict[str, Any]:
    proposal = propose(split)
    found = [
        {"linears": s.linear.fqns, "k": s.linear.k, "n": s.linear.n}
        | {name: getattr(s, name) for name in ("ratio", "low", "high", "slower")}
        for s in speeds(split)
    ]
    chosen = {"filters": proposal.filters, "gain": proposal.gain} if proposal else None
    return {"cell": split.cell.id, "categories": _rows(split), "linears": found, "filter": chosen}


def _times(splits: Sequence[TimeSplit]) -> list[Block]:
    bars = [
        (what(r), label, {c.value: 1e3 * s for c in Category if (s := side.categories.get(c, 0.0)) > 0})
        for r in splits
        for label, side in ((f"bf16, next to {r.cell.label}", r.bf16), (r.cell.label, r.recipe))
    ]
    rows = [
        (model, label, f"{sum(times.values()):.3f}", ", ".join(f"{k} {v:.3f}" for k, v in times.items()))
        for model, label, times in bars
    ]
    names = list(dict.fromkeys(name for _, _, times in bars for name in times))
    absolute = [[round(times.get(n, 0.0), 4) for _, _, times in bars] for n in names]
    shares = [[round(100 * times.get(n, 0.0) / sum(times.values()), 2) for _, _, times in bars] for n in names]
    common = {
        "type": "bar", "orientation": "h", "showlegend": True, "y": [f"{model}: {label}" for model, label, _ in bars],
        "hovertemplate": "%{y}, %{fullData.name}: %{x:.3g}<extra></extra>",
    }  # fmt: skip
    traces = zip(names, shares, COLORS, strict=False)
    plot = Plot(
        "time-split",
        "Where the time of a step goes",
        f"The share of {', '.join(names)} in the time of {len(bars)} steps and blocks.",
        [common | {"name": n, "x": x, "marker": {"color": color}} for n, x, color in traces],
        {"barmode": "stack", "xaxis": titled("share, % (or ms)"), "yaxis": {"autorange": "reversed"}},
        height=140 + 30 * len(bars),
        views=[View("Share", {"x": shares}, {}), View("Milliseconds", {"x": absolute}, {})],
    )
    table = Table("Where the time goes", ("step", "side", "ms", "parts"), rows, SPLITS)
    return [plot, Fold("The numbers of the time split", [table])]


def document(splits: Sequence[TimeSplit]) -> Document:
    """Make a page with the plot of all splits, and each linear alone."""
    blocks = [*_times(splits), *(block for split in splits for block in _linears(split))]
    heading = ", ".join(dict.fromkeys(map(what, splits)))
    page = [Section("times", "Where the time goes", blocks)]
    return Document(f"{heading}: where the time goes", heading, [Paragraph(SPLITS)], page, footer=PLOTLY)


RENDERERS: Renderers[TimeSplit] = {
    "csv": lambda splits: as_csv(COLUMNS, (row.values() for split in splits for row in _rows(split))),
    "json": lambda splits: json.dumps([_content(split) for split in splits], indent=1) + "\n",
    "plot": lambda splits: html(document(splits)),
}
