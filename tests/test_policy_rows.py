"""What the rows of a policy may hold, what they mean where a key is absent, and what the policy says of a check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fp8parity.judging.number_rows import Band, Rule, Trend
from fp8parity.judging.policy import GoldenRow, LossRow, MetricRow, Policy
from fp8parity.judging.rows import Row
from fp8parity.judging.speed_rows import GemmRow, SpeedRow
from fp8parity.judging.stats import Prior
from fp8parity.records.cell import Cell, Execution

WHY = "a made-up row"
LEAST: dict[type[Row], dict[str, Any]] = {
    LossRow: {"margin": 0.005},
    GoldenRow: {"least_seeds": 8},
    SpeedRow: {"band": 0.05, "memory_band": 0.05},
    GemmRow: {"band": 0.1, "place_band": 0.1, "bf16_band": 0.1, "error": 0.1, "bf16_error": 0.01, "error_band": 0.1},
    Rule: {"check": "gemm", "low": 0.0, "high": 1.0},
    Trend: {"check": "gemm", "slack": 0.1},
    Band: {"check": "gemm", "band": 0.1},
}
"""What each row must hold."""
TINY, NEAR = 1e-9, 1e-6


def made(kind: type[Row], **given: object) -> Any:
    return kind.model_validate({**LEAST[kind], "why": WHY, **given})


@pytest.mark.parametrize(
    ("kind", "key", "inside", "outside"),
    [
        (LossRow, "margin", (TINY, 0.2 - NEAR), (0, 0.2)),
        (LossRow, "alpha", (TINY, 0.5 - NEAR), (0, 0.5)),
        (LossRow, "band_alpha", (TINY, 0.5 - NEAR), (0, 0.5)),
        (LossRow, "window", (1, 1000), (0,)),
        (LossRow, "sd", (TINY, 10.0), (0,)),
        (LossRow, "bf16_margin", (TINY, 0.2 - NEAR), (0, 0.2)),
        (LossRow, "min_step_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (LossRow, "min_norm_band", (TINY, 5 - NEAR), (0, 5)),
        (LossRow, "min_context_learned", (0, 2), (-NEAR, 2 + NEAR)),
        (LossRow, "min_loss_drop", (0, 1 - NEAR), (-NEAR, 1)),
        (LossRow, "seeds", ((2,), (2, 3), (3, 5, 8)), ((), (1,), (1, 2), (3, 3), (5, 3))),
        (GoldenRow, "least_seeds", (2,), (1,)),
        (GoldenRow, "replicas", (0,), (-1,)),
        (SpeedRow, "band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (SpeedRow, "memory_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (SpeedRow, "bf16_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (SpeedRow, "least_pairs", (6,), (5,)),
        (SpeedRow, "busy", (0, 100), (-1, 101)),
        (SpeedRow, "clock_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (GemmRow, "band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (GemmRow, "place_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (GemmRow, "bf16_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (GemmRow, "error", (TINY, 1 - NEAR), (0, 1)),
        (GemmRow, "bf16_error", (TINY, 0.1 - NEAR), (0, 0.1)),
        (GemmRow, "error_band", (TINY, 0.5 - NEAR), (0, 0.5)),
        (GemmRow, "least_pairs", (6,), (5,)),
        (GemmRow, "busy", (0, 100), (-1, 101)),
        (GemmRow, "capped", (0, 1), (-NEAR, 1 + NEAR)),
        (Rule, "low", (-5.0, 1.0), (1 + NEAR,)),
        (Trend, "slack", (0,), (-NEAR,)),
        (Band, "band", (TINY,), (0,)),
    ],
)
def test_the_range_of_a_number(kind, key, inside, outside):
    for value in inside:
        assert getattr(made(kind, **{key: value}), key) == value
    for value in outside:
        with pytest.raises(ValueError, match="1 validation error"):
            made(kind, **{key: value})


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
        (GemmRow, {"least_pairs": 8, "busy": 5, "capped": 0.5}),
        (Rule, {"always": False, "metric": (), "where": ()}),
        (Band, {"by": "shared", "metric": (), "where": ()}),
    ],
)  # fmt: skip
def test_what_an_absent_key_means(kind, defaults):
    row = made(kind)
    assert {name: getattr(row, name) for name in defaults} == defaults
    assert (row.recipe, row.model, row.execution, row.corpus) == ((), (), (), ())


def test_a_metric_is_not_shown_unless_its_row_says_so():
    row = {"name": "bias", "better": "lower", "unit": ""}
    assert MetricRow.model_validate(row).shown is False
    assert MetricRow.model_validate(row | {"shown": True}).shown is True


def test_a_prior_needs_a_deviation_and_its_degrees_of_freedom():
    assert made(LossRow, sd=0.001, sd_df=1).prior == Prior(0.001, 1)
    assert made(LossRow, sd=0.001).prior is None
    with pytest.raises(ValueError, match="sd_df needs the sd that it is about"):
        made(LossRow, sd_df=1)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        made(LossRow, sd=0.001, sd_df=0)


def test_a_record_must_hold_the_metrics_of_the_rules_that_always_apply():
    """Neither a rule of another check, nor one of another recipe, nor one without ``always`` asks for anything."""
    rules = (
        made(Rule, metric=("a", "b"), always=True),
        made(Rule, metric=("c",), always=True, recipe="te-current"),
        made(Rule, metric=("d",)),
        made(Rule, metric=("e",), always=True, check="other"),
        made(Rule, metric=("f",), always=True, recipe="te-block"),
    )
    cell = Cell(model="nano", recipe="te-current", execution=Execution.NATIVE)
    assert Policy(path=Path("p"), rule=rules).required(cell, "gemm") == {"a", "b", "c"}
