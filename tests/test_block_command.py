"""The command ``fp8parity block``: what it asks of the runner and prints, and what it refuses. No GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fp8parity import cli
from fp8parity.cli import blocks
from fp8parity.recipes.recipe import Recipe
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Throughput
from fp8parity.workload.shapes import Workload
from timings import SHAPE, calm_but
from timings import made as timed


class FakeRunner:
    """It keeps what it was asked for, and answers with made-up records: 1.2 times BF16, and 1.25 times with a filter."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def time_block(
        self, recipe: Recipe, execution: Execution, workload: Workload, variant: str = "", rest: float = 0.0
    ) -> Throughput:
        self.asked.append(
            (recipe.filters, execution, workload.sequence, workload.micro_batch, variant, *([rest] if rest else []))
        )
        return timed(1.25 if variant else 1.2, block=SHAPE, watch=calm_but(sm_clocks=[1605] * 22, power_capped=0.5))


@pytest.fixture
def fake_runner(monkeypatch) -> FakeRunner:
    fake = FakeRunner()
    monkeypatch.setattr(blocks, "runner_of", lambda args: fake)
    monkeypatch.setattr("fp8parity.recipes.registry.skip_reason", lambda *given: None)
    return fake


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        return code, *capsys.readouterr()

    return call


def test_block_shows_speed_clock_and_power_cap(fake_runner, run):
    code, out, _ = run("block", "llama3-8b", "--recipe", "te-current", "--execution", "fused", "--sequence", "8192")
    assert code == 0 and fake_runner.asked == [(("lm_head",), "fused", 8192, 1, "")]
    assert out.startswith("te-current-base-native compiled: 1.200x [")
    assert "BF16 164 TFLOP/s, te-current 197" in out and "1605 MHz, power cap in 50% of turns" in out


def test_a_filter_is_part_of_the_recipe_and_of_the_variant(fake_runner, run):
    run("block", "llama3-70b", "--recipe", "ao-rowwise", "--filter", "k_proj", "--filter", "v_proj")
    assert fake_runner.asked == [(("lm_head", "k_proj", "v_proj"), "native", 4096, 1, "without k_proj v_proj")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("block", "llama3-9b", "--recipe", "te-current"), "llama3-8b"),
        (("block", "llama3-8b", "--recipe", "te-curent"), "te-current"),
        (("block", "missing.json", "--recipe", "te-current"), "missing.json"),
        (("block", "llama3-8b", "--recipe", "te-current"), "needs a GPU"),
        (("block", "llama3-8b", "--recipe", "te-current", "--execution", "emulated"), "this machine has none"),
    ],
)
def test_what_is_refused_is_one_line(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []
