"""Write the generated tables of the pages in docs/ and lab/docs/ from the code.

    python docs/reference.py

A page holds each table between ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``tests/test_pages.py`` fails if one
is not current.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, get_args

from fp8parity import cli
from fp8parity.cli.common import Command
from fp8parity.gate.options import OPTIONS
from fp8parity.judging import decide, verdict
from fp8parity.judging.policy import TABLES, Policy, claims, known_failures
from fp8parity.judging.policy.rows import Numbers
from fp8parity.judging.policy.selectors import Row, Selector
from fp8parity.judging.policy.thresholds import Threshold, Thresholds
from fp8parity.records.cell import Strict
from fp8parity.records.check_names import CHECKS
from fp8parity.report.sentence import PAGES
from fp8parity.runs.names import WRITERS
from fp8parity.trainers.spec import Trainer
from recipe_tables import models, recipes, scales, table, variants

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=<!-- generated: )([\w -]+)( -->\n).*?(?=\n<!-- end -->)", re.S)
POLICY: dict[str, dict[str, type[Strict]]] = {
    "policy.toml": {**TABLES, "complete.number": Numbers},
    known_failures.FILE: {"known": known_failures.KnownFailure, "known.number": known_failures.Expected},
    claims.FILE: {"claim": claims.Claim},
}
"""The rows by the name of their table, in each hand-written file."""


def options() -> str:
    """Return the options of pytest, each with its key in pyproject.toml."""
    rows = []
    for o in OPTIONS:
        flag = o.short_name if o.short else o.flag
        choices = ", ".join(f"`{name}`" for name in o.arguments.get("choices", ()))
        named = f"{flag} {o.arguments.get('metavar', '')}".strip()
        rows.append((f"`{named}`", f"`{o.setting}`" if o.ini else "-", f"{o.help}{': ' * bool(choices)}{choices}."))
    return table(("option", "setting", "meaning"), *rows)


def commands() -> str:
    """Return a section for each group of commands."""
    return "\n\n".join(f"## {group.capitalize()}\n\n{sections(found)}" for group, found in cli.GROUPS.items())


def sections(found: Mapping[str, Command], level: int = 3) -> str:
    """Return a section for each command."""
    return "\n\n".join(part for name, command in found.items() for part in command_section(name, command, level))


def of_lab() -> str:
    """Return a section for each command of fp8-parity-lab. Raises ``KeyError`` if it is not installed."""
    return sections({name: cli.added()[name] for name in cli.LAB}, level=2)


def command_section(name: str, command: Command, level: int) -> Iterator[str]:
    """Yield heading, sentence, example and arguments of a command and of its actions."""
    yield f"{'#' * level} fp8parity {name}"
    yield f"{command.help[0].upper()}{command.help[1:].removesuffix('?')}."
    if command.example:
        yield f"```sh\n{command.example}\n```"
    if found := list(arguments(command)):
        yield table(("argument", "meaning"), *found)
    for action, inner in command.actions.items():
        yield f"`fp8parity {name} {action}`: {inner.help}."
        yield table(("argument", "meaning"), *arguments(inner))


def arguments(command: Command) -> Iterator[tuple[str, str]]:
    """Yield each argument as ``--help`` shows it."""
    parser = argparse.ArgumentParser(add_help=False)
    command._replace(actions={}).add_to(parser)
    form = parser._get_formatter()
    for action in parser._actions:
        yield f"`{form._format_action_invocation(action)}`", (form._expand_help(action) if action.help else "")


def policy() -> str:
    """Return the keys of each table of the hand-written files."""
    parts = ["Keys of every row that selects cells:", keys(Row)]
    for file, kinds in POLICY.items():
        parts.append(f"## {file}")
        for name, kind in kinds.items():
            parts += [f"### {name}", paragraph(kind), keys(kind), *([thresholds()] if kind is Threshold else [])]
    return "\n\n".join(parts)


def thresholds() -> str:
    """Return the names of thresholds with their shipped numbers."""
    shipped: dict[str, list[str]] = {}
    for row in sorted(Policy(path=Path()).threshold, key=lambda row: bool(row.model)):
        of = f" ({', '.join(row.model)})" if row.model else ""
        shipped.setdefault(row.name, []).append(f"`{row.value:g}`{of}")
    told = dict(terms(Thresholds.__doc__ or ""))
    return table(("name", "shipped", "meaning"), *((f"`{n}`", ", ".join(v), code(told[n])) for n, v in shipped.items()))


def paragraph(kind: type) -> str:
    """Return the text of a docstring before its keys."""
    text = inspect.getdoc(kind) or ""
    return code(re.split(r"\n\n(?=[\w, ]+: )", text)[0].replace("\n\n", " ").replace("\n", " "))


def keys(kind: type[Strict]) -> str:
    """Return the keys of a row and their defaults. Raises ``KeyError`` for a key that no docstring explains."""
    told = {name: text for one in reversed(kind.__mro__) for name, text in terms(vars(one).get("__doc__") or "")}
    common = Row.model_fields if issubclass(kind, Selector) and kind is not Row else {}
    own = [(n, f) for n, f in kind.model_fields.items() if n not in common and not f.exclude]
    shown = [(n, f) for n, f in own if not (kind is Trainer and n in ("name", "folder", "file"))]  # no keys
    rows = [
        (f"`{n}`", "required" if f.is_required() else default(None if f.default_factory else f.default), code(told[n]))
        for n, f in shown
    ]
    return table(("key", "default", "meaning"), *rows)


def default(value: object) -> str:
    """Return a default as TOML."""
    return "-" if value in (None, "", (), [], {}) else f"`{json.dumps(value)}`"


def terms(doc: str) -> Iterator[tuple[str, str]]:
    """Yield the lines "name, other: text" of a docstring, each name alone."""
    clean = inspect.cleandoc(doc)
    lines = inspect.cleandoc(clean.partition("Args:\n")[2] or clean)
    for names, text in re.findall(r"^([\w-]+(?:, [\w-]+)*): (.*(?:\n {2,}\S.*)*)$", lines, re.M):
        for name in names.split(", "):
            yield name, " ".join(text.split())


def code(text: str) -> str:
    """Turn the code of reStructuredText into that of Markdown, and make a sentence of it."""
    text = text.replace("``", "`")
    return text[:1].upper() + text[1:]


def statuses() -> str:
    """Return what each status means, and the page about it."""
    body = ast.parse(inspect.getsource(verdict)).body
    at = next(i for i, n in enumerate(body) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "Status")
    doc = body[at + 1]
    assert isinstance(doc, ast.Expr)
    told = dict(terms(ast.literal_eval(doc.value)))
    assert set(told) == set(get_args(verdict.Status))
    rows = []
    for status in sorted(told, key=lambda s: s not in verdict.GREEN):
        happened, _, todo = told[status].partition(" | ")
        page = PAGES.get(status, "").removeprefix("docs/")
        kind = "green" if status in verdict.GREEN else "red"
        rows.append((f"`{status}`", kind, happened, f"{todo} See [{page}]({page})." if page else todo))
    return table(("status", "is", "what happened", "what to do"), *rows)


def decisions(rules: tuple[decide.Decision, ...]) -> str:
    """Return a table of decisions."""
    heads = ("BF16 to golden", "recipe to BF16", "in a part of the run", "recipe to golden", "answer", "because")
    rows = []
    for rule in rules:
        names = [" or ".join(places) or "any" for places in (rule.framework, rule.recipe)]
        windows = "any" if not rule.windows else "outside" if rule.windows[0] else "inside"
        rows.append((*names, windows, " or ".join(rule.total) or "any", rule.answer, rule.why))
    return table(heads, *rows)


def checks() -> str:
    """Return the question of each check, and what to do if it fails."""
    advice = {c.name: f"{c.advice} Then run `{c.then}`." if c.then else c.advice for c in CHECKS.values()}
    rows = ((f"`{c.name}`", c.question, Path(c.suite).name, advice[c.name]) for c in CHECKS.values())
    return table(("check", "question", "suite", "if it fails"), *rows)


def writers() -> str:
    """Return the programs whose logs are known."""
    found: dict[tuple[str, str], list[str]] = {}
    for w in WRITERS:
        means = "mean since the last log; a NaN may be hidden" if w.filtered else w.averaging
        keys = found.setdefault((w.name, means.replace("unknown", "as logged")), [])
        keys += [text for text in [f"`{w.step}`, `{w.loss}`"] if text not in keys]
    rows = ((name, " or ".join(keys), means) for (name, means), keys in found.items())
    return table(("written by", "step, loss", "a logged loss is"), *rows)


class Made(NamedTuple):
    """A page and the function that makes one of its blocks."""

    page: str
    make: Callable[[], str]


BLOCKS = {
    "options": Made("docs/options.md", options),
    "commands": Made("docs/commands.md", commands),
    "commands of the lab": Made("lab/docs/commands.md", of_lab),
    "policy keys": Made("docs/policy-keys.md", policy),
    "recipes": Made("docs/recipes.md", recipes),
    "scales": Made("docs/recipes.md", scales),
    "variants": Made("docs/recipes.md", variants),
    "models": Made("docs/recipes.md", models),
    "statuses": Made("docs/report.md", statuses),
    "decisions": Made("docs/report.md", lambda: decisions(decide.STATUS)),
    "changes": Made("docs/report.md", lambda: decisions(decide.CHANGED)),
    "checks": Made("docs/report.md", checks),
    "formats": Made("docs/your-runs.md", writers),
    "trainer keys": Made("docs/trainers.md", lambda: keys(Trainer)),
}


def current(page: Path) -> str:
    """Return a page with its generated blocks made again."""
    return BLOCK.sub(lambda m: f"{m[1]}{m[2]}{BLOCKS[m[1]].make()}", page.read_text())


if __name__ == "__main__":
    for page in sorted({ROOT / made.page for made in BLOCKS.values()}):
        if page.exists():  # the lab may not be there
            page.write_text(current(page))
