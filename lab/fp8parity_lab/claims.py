"""Published numbers about recipes of this suite, next to those of record sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from fp8parity.judging.evaluate import Evaluation
from fp8parity.judging.policy.selectors import Names, Written, read_rows
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Quantity
from fp8parity.records.gemms import GemmTimes
from fp8parity.report.blocks import PLOTLY, Block, Document, Inline, Items, Plot, Section, Table
from fp8parity.report.evidence import Evidence
from fp8parity.report.plots import scatter
from fp8parity.report.render import as_json, renderers
from fp8parity.report.sections.speed import SizePoint, by_size, size_points
from pydantic import Field

from fp8parity_lab.published_gemms import published

FILE = Path(__file__).parent / "golden" / "claims.toml"
TITLE = "Published claims"
Metric = Literal["loss gap", "speed-up", "GEMM speed-up"]
COLUMNS = ("source", "recipe", "metric", "published", "here", "on", "what differs")
ON, DIFFERS = 5, 6
"""The columns that a narrow terminal leaves out."""


class Claim(Written):
    """One published number about some recipes of this suite.

    source: where it was published, as text.
    url: its address.
    recipe: the recipes that it is about.
    metric: the kind of number.
    model: the model that was measured.
    hardware: the GPU that was used.
    published: the number, as text.
    differs: why it may differ from ours.
    by_size: speed-ups by billions of parameters, for a plot.
    """

    source: str = Field(min_length=3)
    url: str = Field(pattern=r"^https://")
    recipe: Names = Field(min_length=1)
    metric: Metric
    model: str
    hardware: str
    published: str
    differs: str = Field(min_length=10)
    by_size: dict[Annotated[str, Field(pattern=r"^\d+(\.\d+)?$")], Quantity] = {}

    def measured_by(self, v: Verdict) -> bool:
        """Return whether a verdict holds a number for this recipe and metric."""
        if v.cell.recipe not in self.recipe:
            return False
        found = {"loss gap": v.loss and v.loss.gap, "speed-up": v.speed, "GEMM speed-up": v.gemms and v.gemms.ratios}
        return bool(found[self.metric])


def load(path: Path = FILE) -> tuple[Claim, ...]:
    """Load published numbers. Raises ``ValueError`` with line and key."""
    return tuple(read_rows(path, {"claim": Claim})["claim"])


def table(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> Table:
    """Make the table of published numbers, next to the numbers measured here."""
    rows = [
        (
            Inline(c.source, link=c.url), ", ".join(c.recipe), c.metric, c.published,
            "; ".join(_ours(v) for v in verdicts if c.measured_by(v)) or "not measured here",
            f"{c.model}; {c.hardware}", c.differs,
        )
        for c in claims
    ]  # fmt: skip
    return Table(TITLE, COLUMNS, rows, "Published numbers, and those measured here", optional=(DIFFERS, ON))


def _ours(v: Verdict) -> str:
    where = f"({v.cell.recipe}, {v.cell.model}, {v.cell.execution})"
    if v.loss and v.loss.gap:
        return f"{v.loss.gap.text} {where}"
    if v.gemms:
        return f"{', '.join(f'{mode} {ratio:.2f}x' for mode, ratio in v.gemms.ratios.items())} {where}"
    return f"{v.speed.ratio:.2f}x [{v.speed.low:.2f}, {v.speed.high:.2f}] {where}" if v.speed else ""


def sizes(claims: Sequence[Claim], points: Sequence[SizePoint]) -> Plot:
    """Draw speed-ups over model sizes, ours and published ones."""
    ours = by_size(points)
    look = {"line": {"width": 1.5, "dash": "dot"}, "marker": {"size": 9, "symbol": "diamond-open"}}
    theirs = [
        scatter(
            f"{', '.join(c.recipe)} ({c.source})", [float(size) for size in c.by_size], list(c.by_size.values()),
            "lines+markers", text=[c.model] * len(c.by_size), hovertemplate="%{text}: %{y:.3f}x<extra></extra>", **look,
        )
        for c in claims
        if c.by_size
    ]  # fmt: skip
    return replace(
        ours,
        title=f"{ours.title}, ours and published",
        summary=f"{ours.summary} Published ones of other hardware and other steps: {len(theirs)} lines.",
        data=[*ours.data, *theirs],
    )


def gemms(e: Evaluation) -> Items:
    """List the sums of GEMMs next to the published table of Transformer Engine."""
    found = [(r, text) for r in e.machine.records if isinstance(r, GemmTimes) for _, text in published(r)]
    return Items([f"GEMMs of {r.cell.recipe} on {r.cell.model}: {text}" for r, text in found])


def section(claims: Sequence[Claim], e: Evaluation, number: int) -> Section:
    """Make the blocks of one machine."""
    blocks: list[Block] = [table(claims, e.verdicts)]
    blocks += [listed] if (listed := gemms(e)).items else []
    points = size_points(e.verdicts, Evidence(e.machine.records))
    blocks += [replace(sizes(claims, points), name=f"sizes-{number}")] if points else []
    return Section(f"machine-{number}", e.machine.environment.device, blocks)


def document(sections: Sequence[Section]) -> Document:
    """Make the page of all machines."""
    return Document(TITLE, TITLE, [], sections, footer=PLOTLY)


RENDERERS = renderers(document, lambda sections: as_json({"sections": sections}))
