"""The documents: their links resolve, the files that they name exist, their tables are whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from documents import FENCE, LANGUAGES, PAGES, ROOT, blocks
from fp8parity import checks
from fp8parity.judging.verdict import BLOCK_THROUGHPUT, LOSS, THROUGHPUT, Status


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_conventions_and_links(page):
    assert faults(page) == []


def faults(page: Path) -> list[str]:
    """Prompts, strange fences, links that lead nowhere, files that are named and do not exist."""
    text = page.read_text()
    found = [f"{b.id}: fence {b.language!r}" for b in blocks(page) if b.language not in LANGUAGES | {"indented"}]
    found += [f"prompt: {line}" for line in text.splitlines() if re.match(r"\s*\$ ", line)]
    prose = FENCE.sub("", text)
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose):
        target = page.parent / path if path else page
        if not path.startswith("http") and not (target.exists() and (not anchor or anchor in anchors(target))):
            found.append(f"link: {path}#{anchor}")
    named = re.findall(r"`((?:docs|golden|tests|suites|benchmarks|fixtures)/[\w./-]+\.(?:md|py|zip))`", prose)
    return found + [f"no such file: {name}" for name in named if not (ROOT / name).exists()]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


def unlisted(text: str) -> list[str]:
    """Statuses, checks and sections of the report that have no line of their own in a table."""
    names = [f"| `{name}` |" for name in (*get_args(Status), *checks.CHECKS, LOSS, THROUGHPUT, BLOCK_THROUGHPUT)]
    template = (ROOT / "fixtures/fp8parity/report/report.html.j2").read_text()
    names += [f"| **{title}** |" for title in re.findall(r'<h2 id="[^"]*">([^<]*)</h2>', template)]
    return [n for n in names if text.count(f"\n{n}") != 1]


def test_every_status_check_and_section_has_its_line():
    text = (ROOT / "docs/report.md").read_text()
    assert unlisted(text) == []
    assert unlisted(text.replace("\n| `stale` |", "\n| `old` |")) == ["| `stale` |"]


def test_a_wrong_page_is_red(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[a](no.md) [b](#a-page) [c](#other) `docs/no.md`\n\n```console\n$ pytest\n```\n")
    assert [f.partition(":")[0] for f in faults(page)] == ["page.md", "prompt", "link", "link", "no such file"]
