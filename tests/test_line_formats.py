"""Lines of some seventy frameworks, and what a general reader takes from them."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from curves import curve
from fp8parity import runs
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writers import rows

FORMATS = {f["name"]: f for f in tomllib.loads((Path(__file__).parent / "line-formats.toml").read_text())["format"]}
STARTUP = [
    "Loading checkpoint shards: 100%|##########| 4/4 [00:01<00:00,  3.21it/s]",
    "2026-11-22 08:59:59 INFO world size 8, model has 7,241,732,096 parameters",
    "{'lr': 0.001, 'steps': 50, 'seed': 1234}",
    "    --train-iters ................................... 500",
    "Warning: torch.load is deprecated since 2.6",
]


def write(path: Path, form: dict[str, Any], steps: int = 50, startup: bool = True) -> list[float]:
    made = curve(steps=steps)
    texts = [*(STARTUP if startup else []), *([form["before"]] if "before" in form else [])]
    for s, x, g, r in rows(made):
        more = {"e": s / 10, "c": 256 * s, "i0": 2 * s - 1, "i1": 2 * s}
        values = {"s": s, "n": steps, "x": x, "g": g, "r": r, **more}
        text = form["line"].strip("\n").format(**values)
        texts.append(text.replace(".", ",") if form.get("comma") else text)
        if s % 10 == 0 and "between" in form:
            texts.append(form["between"].format(**values))
    path.write_text("\n".join([*texts, "done", ""]))
    return made.loss


@pytest.mark.parametrize("name", FORMATS)
def test_lines_of_a_framework_are_read(name, tmp_path):
    form = FORMATS[name]
    expected = write(tmp_path / "run.log", form)
    if form.get("refused"):
        with pytest.raises(ValueError, match="no column of steps|unknown format"):
            runs.read(tmp_path / "run.log", form["ask_loss"])
        return
    run = runs.read(tmp_path / "run.log", form.get("ask_loss"))
    assert (run.step_key, run.loss_key) == (form["step"], form["loss"])
    each = form.get("points", 1)
    counts = {"rows": range(1, 51), "tokens": range(256, 50 * 256 + 1, 256)}
    counts["samples"] = counts["tokens"]
    assert run.points == list(counts.get(form.get("count", ""), range(1, 50 * each + 1)))
    assert run.loss == pytest.approx([x for x in expected for _ in range(each)], rel=5e-4, abs=5e-4)
    assert (run.missing, run.not_finite, run.empty, run.replaced) == (0, [], [], 0)
    assert run.axis == form.get("count", "steps")


KEYS = {"step": "{s}", "loss": "{x:.5f}", "lr": "{r:.3e}", "grad_norm": "{g:.3f}", "tps": "10,050", "mfu": "12.5%"}
PREFIXES = ["", "[rank0]: ", "2026-11-22 09:00:00,123 - root - INFO - ", "INFO:train:", "[09:00:00] ", "node-3: ",
            "(main pid=17) ", "I1122 09:00:00.12 17 train.py:5] ", "2026/11/22 09:00:00 | INFO | ", "0: "]  # fmt: skip
STYLES = [(": ", " | "), ("=", " "), (" ", " | "), (": ", ", "), ("=", ", "), (":", " "), (": ", "  "), (" ", ", ")]
COLORS = ["", "\x1b[32m", "\x1b[38;2;180;60;0m", "[36m", "^[[1m", "\x1b[0m"]


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(list(KEYS)),
    kept=st.integers(2, len(KEYS)),
    prefix=st.sampled_from(PREFIXES),
    style=st.sampled_from(STYLES),
    colors=st.lists(st.sampled_from(COLORS), min_size=6, max_size=6),
    dicts=st.booleans(),
    total=st.booleans(),
    seed=st.integers(0, 9),
)
def test_order_prefix_and_color_do_not_change_the_run(
    order, kept, prefix, style, colors, dicts, total, seed, tmp_path_factory
):
    made, between = curve(steps=30), random.Random(seed)
    names = sorted(order, key=lambda name: name not in ("step", "loss"))
    names = [name for name in order if name in names[:kept]]
    equals, comma = (": ", ", ") if dicts else style
    texts = []
    for s, x, g, r in rows(made):
        cells = [
            f"{color}{f'{name!r}' if dicts else name}{equals}{KEYS[name].format(s=s, x=x, g=g, r=r)}"
            + (f"/{30 if style[1] != ' ' else '30'}" if total and name == "step" and not dicts else "")
            for name, color in zip(names, colors, strict=False)
        ]
        line = comma.join(cells)
        texts += [*between.sample(STARTUP, between.randint(0, 2)), prefix + (f"{{{line}}}" if dicts else line)]
    path = tmp_path_factory.mktemp("lines") / "run.log"
    path.write_text("\n".join(texts) + "\n")
    run = runs.read(path)
    split = "train " if ":train:" in prefix else ""
    assert run.step_key in ("step", f"{split}step") and run.loss_key in ("loss", f"{split}loss")
    assert run.points == list(range(1, 31))
    assert run.loss == pytest.approx(made.loss, abs=6e-6)
    assert not run.learning_rate or run.learning_rate == pytest.approx(made.learning_rate, rel=1e-3)
    assert not run.grad_norm or run.grad_norm == pytest.approx(made.grad_norm, abs=6e-4)
    assert bool(run.learning_rate) == ("lr" in names) and bool(run.grad_norm) == ("grad_norm" in names)
