"""Write the generated tables of the pages in docs/ and lab/docs/, and ``records/checks.json``, from the code.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, get_args

from fp8parity import cli
from fp8parity.cli.common import Command
from fp8parity.cli.recipes import SCALES
from fp8parity.gate.options import OPTIONS
from fp8parity.judging import decide, verdict
from fp8parity.judging import table as table_of_numbers
from fp8parity.judging.policy import TABLES, Policy, known_failures
from fp8parity.judging.policy.rows import NumberRow, Numbers
from fp8parity.judging.policy.selectors import Row, Selector
from fp8parity.judging.policy.thresholds import Threshold, Thresholds
from fp8parity.numerics.spec import GEMMS, Operand
from fp8parity.recipes.catalogue import CATALOGUE, VARIANTS
from fp8parity.recipes.recipe import OLDEST, Recipe
from fp8parity.records import check_names
from fp8parity.records.cell import Strict
from fp8parity.records.check_names import CHECKS, CheckInfo
from fp8parity.report.sentence import PAGES, grouped
from fp8parity.runner import declared
from fp8parity.runs.names import WRITERS
from fp8parity.trainers.spec import Trainer
from fp8parity.workload.config import MODELS
from fp8parity.workload.presets import presets
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=<!-- generated: )([\w -]+)( -->\n).*?(?=\n<!-- end -->)", re.S)
POLICY: dict[str, dict[str, type[Strict]]] = {
    "policy.toml": {**TABLES, "complete.number": Numbers},
    known_failures.FILE: {"known": known_failures.KnownFailure, "known.number": known_failures.Expected},
}
"""The rows by the name of their table, in each hand-written file."""
SHORT = {"transformer_engine": "Transformer Engine"}


def checks_text() -> str:
    """Return what the files of checks say about them as ``checks.json`` holds it."""
    known = [field.name for field in fields(CheckInfo)]
    said = [{name: value for name in known if (value := getattr(c, name))} for c in declared().values()]
    return f"{json.dumps(said, indent=1)}\n"


def table(*rows: Iterable[object]) -> str:
    """Return rows as Markdown; the first one holds the heads."""
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(list(rows[0])) + "|", *lines[1:]])


def listed(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and what they mean as a Markdown list."""
    return "\n".join(f"* {name}: {meaning}" if meaning else f"* {name}" for name, meaning in rows)


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


def claim_keys() -> str:
    """Return the keys of a published number in the lab."""
    from fp8parity_lab.claims import Claim

    return keys(Claim)


def command_section(name: str, command: Command, level: int) -> Iterator[str]:
    """Yield heading, sentence, example and arguments of a command and of its actions."""
    yield f"{'#' * level} fp8parity {name}"
    yield f"{command.help[0].upper()}{command.help[1:].removesuffix('?')}."
    if command.example:
        yield f"```sh\n{command.example}\n```"
    if found := list(arguments(command)):
        yield listed(found)
    for action, inner in command.actions.items():
        yield f"`fp8parity {name} {action}`: {inner.help}."
        yield listed(arguments(inner))


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
    parts += ["Keys of every row about numbers of checks:", keys(NumberRow)]
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
    shared = ((Row, Selector), (NumberRow, NumberRow))  # listed once, for all rows of the second kind
    common = {n for base, rows in shared if issubclass(kind, rows) and kind is not base for n in base.model_fields}
    own = [(n, f) for n, f in kind.model_fields.items() if n not in common and not f.exclude]
    shown = [(n, f) for n, f in own if not (kind is Trainer and n in ("name", "folder", "file"))]  # no keys
    notes = {n: "required" if f.is_required() else default(f) for n, f in shown}
    return listed((f"`{n}`{f' ({note})' if note else ''}", code(told[n])) for n, note in notes.items())


def default(field: FieldInfo) -> str:
    """Return a default as TOML, or "" if there is none."""
    value = None if field.default_factory else field.default
    return "" if value in (None, "", (), [], {}) else f"`{json.dumps(value)}`"


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
    body = ast.parse(inspect.getsource(table_of_numbers)).body
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
    """Return the question of each check, and where and when it runs. Messages say what to do if it fails."""
    numerics = declared()
    found = [*(c for c in CHECKS.values() if c.name not in numerics), *numerics.values()]
    rows = ((f"`{c.name}`", c.question, f"{Path(c.suite).name}{', release' * c.release}") for c in found)
    return table(("check", "question", "suite"), *rows)


def writers() -> str:
    """Return the programs whose logs are known."""
    found: dict[tuple[str, str], list[str]] = {}
    for w in WRITERS:
        means = "mean since the last log; a NaN may be hidden" if w.filtered else w.averaging
        keys = found.setdefault((w.name, means.replace("unknown", "as logged")), [])
        keys += [text for text in [f"`{w.step}`, `{w.loss}`"] if text not in keys]
    rows = ((name, " or ".join(keys), means) for (name, means), keys in found.items())
    return table(("written by", "step, loss", "a logged loss is"), *rows)


def recipes() -> str:
    """Return the recipes in their textbook form."""
    heads = ("recipe", "vendor's name", "x and w", "dy", "a scale for", "scale rule", "kernels")
    rows = []
    for r in (r for r in CATALOGUE if r.linear.quantized):
        rules = dict.fromkeys(op.scale for _, op in r.linear if op.quantized)
        formats = [formats_of(r, "x", "w"), formats_of(r, "dy")]
        rows.append(
            (f"`{r.name}`", f"`{r.vendor}`", *formats, scaled(r), ", ".join(f"`{n}`" for n in rules), kernels(r))
        )
    return table(heads, *rows)


def formats_of(recipe: Recipe, *tensors: str) -> str:
    """Return for example "E4M3, in wgrad BF16"."""
    ops = [(name.split("_")[0], op.format.upper()) for name, op in recipe.linear if name.split("_")[1] in tensors]
    main = next(fmt for _, fmt in ops if fmt != "BF16")
    other = {gemm: fmt for gemm, fmt in ops if fmt not in (main, "BF16") or (fmt == "BF16" and "dy" in tensors)}
    return ", ".join([main, *(f"in {gemm} {fmt}" for gemm, fmt in other.items())])


def scaled(recipe: Recipe) -> str:
    """Return for example "1x128 of x and dy, 128x128 of w"."""
    used: dict[str, dict[str, str]] = {}
    for name, op in recipe.linear:
        if op.quantized:
            gemm, tensor = name.split("_")
            used.setdefault(tensor, {})[gemm] = tile(op)
    places = [
        (kind, tensor if len(set(found.values())) == 1 else f"{tensor} in {gemm}")
        for tensor, found in used.items()
        for gemm, kind in found.items()
    ]
    kinds = {kind: list(dict.fromkeys(names)) for kind, names in grouped(places).items()}
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{kind} of {', '.join(names)}" for kind, names in kinds.items())


def tile(op: Operand) -> str:
    return {(0, 0): "a tensor", (1, 0): "a row"}.get(op.tile, "x".join(map(str, op.tile)))


def kernels(recipe: Recipe) -> str:
    """Return for example "Transformer Engine 2.10, sm_90 or later"."""
    n = recipe.native
    if not n:
        return "emulated only"
    return f"{SHORT.get(n.package, n.package)} {n.since or OLDEST[n.package]}, {n.gpus}"


def scales() -> str:
    """Return what each scale rule computes."""
    return table(("scale rule", "a scale is"), *((f"`{name}`", text) for name, text in SCALES.items()))


def variants() -> str:
    """Return the variants and what differs from their bases."""
    bases = {r.name: r for r in CATALOGUE}
    rows = ((f"`{r.name}`", differences(r, bases[r.base]), linked(r.source), kernels(r)) for r in VARIANTS)
    return table(("variant", "differs from its base by", "defined by", "kernels"), *rows)


def differences(recipe: Recipe, base: Recipe) -> str:
    """Return operands, places, modules and options of a variant that its base does not have."""
    old = dict(base.linear)
    changed = grouped((operand(op, old[name]), name) for name, op in recipe.linear if op != old[name])
    quantized = [name for name, op in base.linear if op.quantized]
    parts = [text if names == quantized else f"{text} for {among(names)}" for text, names in changed.items()]
    parts += [f"BF16 for {rule}" for rule in recipe.rules]
    parts += [f"no module named {', '.join(base.filters)} left in BF16"] if base.filters and not recipe.filters else []
    return "; ".join([*parts, *(f"`{key}={value}`" for key, value in recipe.options)])


def operand(new: Operand, old: Operand) -> str:
    """Return what of an operand changed."""
    if not new.quantized:
        return "BF16, of fprop's dequantized codes," if new.dequantized else "BF16"
    fields = {"scale": f"scale rule `{new.scale}`", "format": new.format.upper(), "history": f"history {new.history}"}
    fields["tile"] = f"{tile(new)} tiles"
    return ", ".join(text for name, text in fields.items() if getattr(new, name) != getattr(old, name))


def among(names: list[str]) -> str:
    """Return operands by GEMM: "dgrad (dy, w), wgrad (dy)"."""
    found = grouped((gemm, tensor) for gemm, _, tensor in (name.partition("_") for name in names))
    return ", ".join(f"{gemm} ({', '.join(found[gemm])})" for gemm in GEMMS if gemm in found)


def linked(source: str) -> str:
    """Return a text whose addresses are links with the name of the repository."""
    return re.sub(r"https://github\.com/[\w.-]+/([\w.-]+)[^\s()]*", lambda m: f"[{m[1]}]({m[0]})", source)


def models() -> str:
    """Return the sizes and schedules that are trained without a name."""
    heads = ("model", "parameters", "width", "blocks", "heads, of them for k and v", "MLP", "steps x tokens")
    rows = []
    for m in MODELS:
        s = presets()[m.name].schedule
        size = f"{m.parameters:,}", f"{m.dim:,}", m.layers, f"{m.heads}, {m.kv_heads}", f"{m.hidden:,}"
        rows.append((f"`{m.name}`", *size, f"{s.steps} x {s.rows * s.length * s.accumulation:,}"))
    return table(heads, *rows)


class Made(NamedTuple):
    """A page and the function that makes one of its blocks."""

    page: str
    make: Callable[[], str]


BLOCKS = {
    "options": Made("docs/options.md", options),
    "commands": Made("docs/commands.md", commands),
    "commands of the lab": Made("lab/docs/commands.md", of_lab),
    "claim keys": Made("lab/docs/claims.md", claim_keys),
    "policy keys": Made("docs/policy-keys.md", policy),
    "recipes": Made("docs/recipes.md", recipes),
    "scales": Made("docs/recipes.md", scales),
    "variants": Made("docs/recipes.md", variants),
    "models": Made("docs/recipes.md", models),
    "statuses": Made("docs/report.md", statuses),
    "decisions": Made("lab/docs/decisions.md", lambda: decisions(decide.STATUS)),
    "changes": Made("lab/docs/decisions.md", lambda: decisions(decide.CHANGED)),
    "checks": Made("docs/report.md", checks),
    "formats": Made("docs/formats.md", writers),
    "trainer keys": Made("docs/policy-keys.md", lambda: keys(Trainer)),
}


def current(page: Path) -> str:
    """Return a page with its generated blocks made again."""
    return BLOCK.sub(lambda m: f"{m[1]}{m[2]}{BLOCKS[m[1]].make()}", page.read_text())


if __name__ == "__main__":
    check_names.FILE.write_text(checks_text())
    for page in sorted({ROOT / made.page for made in BLOCKS.values()}):
        if page.exists():  # the lab may not be there
            page.write_text(current(page))
