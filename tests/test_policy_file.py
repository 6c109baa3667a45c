"""policy.toml as a file: what a row may hold, and how faults are named by file, line and key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import sessions
from fp8parity.judging import policy
from fp8parity.judging.policy import GemmRow, GoldenRow, LossRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Band, Rule, Trend
from fp8parity.judging.stats import Prior
from fp8parity.records.cell import Cell, Execution
from rows import row

SMALL, NEAR = 1e-9, 1e-6
HALF = (SMALL, 0.5 - NEAR), (0, 0.5)


@pytest.mark.parametrize(
    ("kind", "key", "inside", "outside"),
    [
        (LossRow, "margin", (SMALL, 0.2 - NEAR), (0, 0.2)),
        (LossRow, "alpha", *HALF),
        (LossRow, "band_alpha", *HALF),
        (LossRow, "window", (1, 1000), (0,)),
        (LossRow, "sd", (SMALL, 10.0), (0,)),
        (LossRow, "bf16_margin", (SMALL, 0.2 - NEAR), (0, 0.2)),
        (LossRow, "min_step_band", *HALF),
        (LossRow, "min_norm_band", (SMALL, 5 - NEAR), (0, 5)),
        (LossRow, "min_context_learned", (0, 2), (-NEAR, 2 + NEAR)),
        (LossRow, "min_loss_drop", (0, 1 - NEAR), (-NEAR, 1)),
        (LossRow, "seeds", ((2,), (2, 3), (3, 5, 8)), ((), (1,), (1, 2), (3, 3), (5, 3))),
        (GoldenRow, "least_seeds", (2,), (1,)),
        (GoldenRow, "replicas", (0,), (-1,)),
        (SpeedRow, "memory_band", *HALF),
        (SpeedRow, "clock_band", *HALF),
        *((kind, "band", *HALF) for kind in (SpeedRow, GemmRow)),
        *((kind, "bf16_band", *HALF) for kind in (SpeedRow, GemmRow)),
        *((kind, "least_pairs", (6,), (5,)) for kind in (SpeedRow, GemmRow)),
        *((kind, "busy", (0, 100), (-1, 101)) for kind in (SpeedRow, GemmRow)),
        (GemmRow, "place_band", *HALF),
        (GemmRow, "error", (SMALL, 1 - NEAR), (0, 1)),
        (GemmRow, "bf16_error", (SMALL, 0.1 - NEAR), (0, 0.1)),
        (GemmRow, "error_band", *HALF),
        (GemmRow, "capped", (0, 1), (-NEAR, 1 + NEAR)),
        (Rule, "low", (-5.0, 1.0), (1 + NEAR,)),
        (Trend, "slack", (0,), (-NEAR,)),
        (Band, "band", (SMALL,), (0,)),
    ],
)
def test_number_of_a_row_has_a_range(kind, key, inside, outside):
    for value in inside:
        assert getattr(row(kind, **{key: value}), key) == value
    for value in outside:
        with pytest.raises(ValueError, match="1 validation error"):
            row(kind, **{key: value})


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        (
            LossRow,
            {
                "seeds": (3, 5, 8), "alpha": 0.05, "band_alpha": 0.001, "window": 10, "sd": None, "sd_df": None, "bf16_margin": None,
                "min_step_band": None, "min_norm_band": None, "min_context_learned": None, "min_loss_drop": 0.25, "prior": None,
            },
        ),
        (GoldenRow, {"replicas": 0}),
        (SpeedRow, {"bf16_band": 0.1, "least_pairs": 8, "busy": 5, "clock_band": 0.05}),
        (GemmRow, {"bf16_band": 0.1, "least_pairs": 8, "busy": 5, "capped": 0.5}),
        (Rule, {"always": False, "metric": (), "where": ()}),
        (Band, {"by": "shared", "metric": (), "where": (), "recipe": (), "model": (), "execution": (), "corpus": ()}),
    ],
)  # fmt: skip
def test_missing_key_has_its_default(kind, defaults):
    assert {name: getattr(row(kind), name) for name in defaults} == defaults


def test_prior_needs_a_deviation_and_its_degrees_of_freedom():
    assert row(LossRow, sd=0.001, sd_df=1).prior == Prior(0.001, 1)
    assert row(LossRow, sd=0.001).prior is None


LOSS = '[[loss]]\nmargin = 0.005\nwhy = "long enough"\n'
RULE = '[[rule]]\ncheck = "a"\nmetric = "b"\nwhy = "long enough"\n'
COMPLETE = '[[complete]]\ncheck = "a"\nwhy = "long enough"\n'
BAND = '[[band]]\ncheck = "a"\nmetric = "b"\nwhy = "long enough"\n'


def load(folder: Path, text: str) -> Policy:
    (folder / policy.FILE).write_text(text)
    return policy.load(folder, sessions.DAY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[loss]\n", "policy.toml: .*line 1"),
        ("[[los]]\n", "policy.toml: unknown table 'los'; known: extends, alike, loss"),
        ("loss = [1]\n", r"'loss' is not a table of rows; write each row below a line \[\[loss\]\]"),
        (LOSS + "[[loss]]\nmargin = 0.005\n", r"policy.toml:4: \[\[loss\]\] key why: Field required"),
        (LOSS.replace("long enough", "9 letters"), r"policy.toml:1: \[\[loss\]\] key why: .* at least 10 characters"),
        (LOSS + "seeds = [1, 2]\n", r"policy.toml:1: \[\[loss\]\] key \(row\): .*seeds must grow and start at 2 or more"),
        (LOSS + "sd_df = 4\n", "sd_df needs the sd that it is about"),
        (LOSS + "margn = 1\n", "key margn: Extra inputs"),
        (LOSS + RULE + "low = 1\n", r"policy.toml:4: \[\[rule\]\] key high: Field required"),
        (LOSS + RULE + "low = 2\nhigh = 1\n", "policy.toml:4: .* low 2.0 is above high 1.0"),
        (LOSS + RULE + "number = [{ low = 1, high = 2 }, { low = 1 }]\n", r"policy.toml:4: .* key number.1.high: Field required"),
        (LOSS + RULE + "low = 0\nhigh = 1\nnumber = []\n", "key number: Extra inputs"),
        (RULE.replace('metric = "b"', "always = true") + "low = 0\nhigh = 1\n", "always needs the metrics that a record must hold"),
        (COMPLETE, r"\[\[complete\]\] key number: Field required"),
        (COMPLETE + 'number = [{ metric = "a" }]\n', "key number.0.where: Field required"),
        (BAND, r"\[\[band\]\] key band: Field required"),
        (BAND + 'band = 1\nby = "cpu"\n', "key by"),
        (LOSS + 'recipe = ["te-current", "ao-*"]\n', r"key recipe: .*'ao-\*' is a pattern; list the names"),
        (RULE.replace('"b"', '"[fd]prop"') + "low = 0\nhigh = 1\n", "is a pattern; list the names"),
    ],
)  # fmt: skip
def test_fault_of_the_file_is_named_with_line_and_key(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)


def test_row_of_several_numbers_is_as_several_rows(tmp_path):
    several = (
        'number = [{ metric = "b", low = 0, high = 1 }, { where = ["x", "y"], low = 2, high = 3, always = true }]\n'
    )
    first, second = load(tmp_path, RULE + several).rule
    assert (first.metric, first.where, first.low, first.high, first.always) == (("b",), (), 0, 1, False)
    assert (second.metric, second.where, second.low, second.high, second.always) == (("b",), ("x", "y"), 2, 3, True)
    assert first.why == second.why == "long enough" and first.check == second.check == ("a",)
    assert first.written == second.written == 1


def test_with_seeds_replaces_the_stages(tmp_path):
    rows = load(tmp_path, LOSS)
    assert rows.with_seeds(4).loss[0].seeds == (4,)
    assert rows.loss[0].within(4).seeds == (3, 4)


def test_committed_policy_is_small():
    """A person reads it: at most 120 rows."""
    tables = tomllib.loads((sessions.GOLDEN / policy.FILE).read_text())
    assert sum(len(rows) for rows in tables.values()) <= 120


@pytest.mark.parametrize(
    ("recipe", "model", "margin", "seeds"),
    [
        ("ao-rowwise", "mini", 0.001, (2, 3, 5, 8)),
        ("ao-rowwise", "1b", 0.0025, (3,)),
        ("te-nvfp4", "micro", 0.005, (2, 3, 5, 8)),
        ("te-delayed", "1b", 0.015, (3,)),
        ("mine", "own", 0.005, (3, 5, 8)),
    ],
)
def test_committed_loss_rows_apply(recipe, model, margin, seeds):
    found = sessions.stored()[1].loss_row(Cell(model=model, recipe=recipe, execution=Execution.NATIVE, corpus="topics"))
    assert (found.margin, found.seeds) == (margin, seeds)


def test_name_may_hold_any_letter_but_those_of_a_pattern(tmp_path):
    names = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '*?[]\\"')
    assert load(tmp_path, f'{LOSS}recipe = "{names}"\n').loss[0].recipe == (names,)
    for letter in "*?[]":
        with pytest.raises(ValueError, match=re.escape(f"'a{letter}' is a pattern")):
            load(tmp_path, f'{LOSS}model = "a{letter}"\n')
