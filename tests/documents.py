"""Code blocks, commands and tables of the documents.

Commands stand without a prompt, in an ``sh`` fence (README: indented).
"""

from __future__ import annotations

import itertools
import re
import shlex
import types
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAGES = (
    *(
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "SECURITY.md",
            "SKILL.md",
            "golden/README.md",
            "examples/trainers/README.md",
        )
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "lab").rglob("*.md")),
)
LANGUAGES = {"{eval-rst}", "{toctree}", "sh", "text", "python", "toml", "yaml", "json", ""}
VARIABLE = re.compile(r"\$\{\{.*?\}\}|\$\{[^}]*\}|\$\w+")
PREFIX = re.compile(r"\w+=.*|srun|-.*|run:|\|")
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.S | re.M)
INDENTED = re.compile(r"(?:^ {4}[^\n]*\n)+", re.M)


@dataclass(frozen=True)
class Block:
    """Consecutive lines of code; ``output`` is the text fence right after."""

    page: Path
    line: int
    language: str
    text: str
    output: str = ""

    @property
    def id(self) -> str:
        inside = self.page.is_relative_to(ROOT)
        return f"{self.page.relative_to(ROOT) if inside else self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = [(m.start(), m[1].strip(), m[2], m[3] or "") for m in FENCE.finditer(text)]
    rest = FENCE.sub(lambda m: re.sub(r"[^\n]", "#", m[0]), text)
    found += [(m.start(), "indented", m[0], "") for m in INDENTED.finditer(rest)]
    return [Block(page, text[:at].count("\n") + 1, kind, body, output) for at, kind, body, output in found]


def commands(block: Block) -> list[list[str]]:
    """Return program and arguments of each command of this project, without comments, variables and prefixes."""
    if block.language not in ("sh", "indented", "yaml"):
        return []
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|;|\s\|\s", VARIABLE.sub("*", line)):
            try:
                words = shlex.split(part.strip().removeprefix("- "), comments=True)
            except ValueError:  # prose or a message, not a command
                continue
            words = words[next((i for i, w in enumerate(words) if not PREFIX.fullmatch(w)), len(words)) :]
            if words and (command := _ours(words)):
                found.append(command)
    return found


def _ours(words: list[str]) -> list[str] | None:
    program, *arguments = [Path(words[0]).name, *words[1:]]
    if program in ("python", "python3") and arguments[:1] == ["-m"]:
        program, *arguments = arguments[1:]
    if program in ("python", "python3") and arguments[:1] and arguments[0].endswith(".py"):
        return ["script", *arguments]
    return [program, *arguments] if program in ("fp8parity", "pytest", "pip", "tox") else None


def steps(workflow: Path) -> list[Block]:
    """Return what a GitHub workflow runs."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    found = [(i, step["run"]) for job in jobs.values() for i, step in enumerate(job["steps"]) if "run" in step]
    return [Block(workflow, i, "sh", run) for i, run in found]


CONFTEST = ROOT / "docs/examples/my_conftest.py"
EXTEND = [Block(CONFTEST, 1, "python", CONFTEST.read_text())]
EXTEND += [b for b in blocks(ROOT / "docs/extend.md") if b.language in ("python", "toml")]
RECIPES = [b for b in blocks(ROOT / "docs/recipes.md") if b.language == "python"]


def example(index: int, written: list[Block] = EXTEND) -> types.ModuleType:
    """Return a Python block of a page (docs/extend.md and its conftest.py by default) as a module."""
    module = types.ModuleType(f"fp8parity_docs_{index}")
    exec(compile(written[index].text, written[index].id, "exec"), module.__dict__)
    return module


def conftest(page: Path) -> list[types.ModuleType]:
    """Return the conftest.py that a page shows, as a module."""
    return {"extend.md": [example(0)], "recipes.md": [example(0, RECIPES)]}.get(page.name, [])


def environments(text: str) -> set[str]:
    """Return the names of tox environments: "{old,new}" stands for two."""
    found = {name.strip() for name in text.split("env_list =")[1].splitlines()[0].split(",")}
    for section in re.findall(r"^\[testenv:(.*)\]$", text, re.M):
        parts = [part.strip("{}").split(",") for part in re.findall(r"\{[^}]*\}|[^{}]+", section)]
        found |= {"".join(choice) for choice in itertools.product(*parts)}
    return found


def rows(page: str) -> list[list[str]]:
    """Return the cells of each line of ``docs/<page>``. A line outside of tables has one cell."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in (ROOT / "docs" / page).read_text().splitlines()]
