"""Recipes and models as tables in Markdown, for ``reference.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fp8parity.cli.recipes import SCALES
from fp8parity.numerics.spec import GEMMS, Operand
from fp8parity.recipes.catalogue import CATALOGUE, VARIANTS
from fp8parity.recipes.recipe import OLDEST, Recipe
from fp8parity.report.sentence import grouped
from fp8parity.workload.config import MODELS
from fp8parity.workload.presets import presets

SHORT = {"transformer_engine": "Transformer Engine"}


def table(*rows: Iterable[object]) -> str:
    """Return rows as Markdown; the first one holds the heads."""
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(list(rows[0])) + "|", *lines[1:]])


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
