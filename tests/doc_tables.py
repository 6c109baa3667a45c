"""The tables of the documents."""

from __future__ import annotations

from processes import ROOT


def rows(page: str) -> list[list[str]]:
    """The cells of each line of ``docs/<page>``. A line that is of no table has one cell."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in (ROOT / "docs" / page).read_text().splitlines()]
