"""The commands ``fp8parity block`` and ``fp8parity split``: what they ask of the runner, print and write, and what they refuse. No GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fp8parity import cli
from fp8parity.cli import blocks
from fp8parity.recipes.recipe import Recipe
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Throughput, TimeSplit
from fp8parity.workload.shapes import Workload
from timings import KV, SHAPE, Q, calm_but
from timings import made as timed
from timings import split as split_of


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

    def split_block(self, recipe: Recipe, execution: Execution, workload: Workload) -> TimeSplit:
        self.asked.append(("block", workload.shape.name))
        return split_of(Q, KV)

    def split_step(self, cell: Cell) -> TimeSplit:
        self.asked.append(("step", cell.id))
        return split_of(Q, KV)


@pytest.fixture
def runner(monkeypatch) -> FakeRunner:
    fake = FakeRunner()
    monkeypatch.setattr(blocks, "_runner", lambda args: fake)
    monkeypatch.setattr("fp8parity.recipes.registry.skip_reason", lambda *given: None)
    return fake


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(list(arguments))
        return code, *capsys.readouterr()

    return call


def test_block_shows_speed_clock_and_power_cap(runner, run):
    code, out, _ = run("block", "llama3-8b", "--recipe", "te-current", "--execution", "fused", "--sequence", "8192")
    assert code == 0 and runner.asked == [(("lm_head",), "fused", 8192, 1, "")]
    assert out.startswith("te-current-base-native compiled: 1.200x [")
    assert "BF16 164 TFLOP/s, te-current 197" in out and "1605 MHz, power cap in 50% of turns" in out


def test_a_filter_is_part_of_the_recipe_and_of_the_variant(runner, run):
    run("block", "llama3-70b", "--recipe", "ao-rowwise", "--filter", "k_proj", "--filter", "v_proj")
    assert runner.asked == [(("lm_head", "k_proj", "v_proj"), "native", 4096, 1, "without k_proj v_proj")]


@pytest.mark.parametrize("option", ["--sequence", "--micro-batch"])
def test_split_of_a_step_refuses_a_batch(runner, run, option):
    """The suite sets the batch of a whole step, so the option would be ignored."""
    code, out, err = run("split", "1b", "--recipe", "te-current", option, "16")
    assert (code, out, runner.asked) == (2, "", [])
    assert err == "fp8parity: --sequence and --micro-batch are those of a block; add --block, or leave them out\n"
    assert run("split", "1b", "--recipe", "te-current", option, "16", "--block")[0] == 0 and runner.asked == [
        ("block", "1b")
    ]


def test_the_proposed_filter_is_measured_on_request(runner, run):
    _, out, _ = run("split", "llama3-8b", "--recipe", "te-current", "--measure-filter")
    assert [a[-1] for a in runner.asked[1:]] == ["", "without k_proj v_proj"]
    assert "predicted gain +2.0%" in out and "a block with the filter: measured gain +4.2% [" in out


def test_the_tables_are_written(runner, run, tmp_path):
    files = (tmp_path / "s.csv", tmp_path / "s.json")
    assert run("split", "1b", "--recipe", "te-current", "--csv", str(files[0]), "--json", str(files[1]))[0] == 0
    assert files[0].read_text().startswith("device,cell,timed,mode,category,") and '"filter"' in files[1].read_text()
    (tmp_path / "file").write_text("")
    code, _, err = run("split", "1b", "--recipe", "te-current", "--csv", str(tmp_path / "file" / "s.csv"))
    assert code == 2 and "s.csv could not be written" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("block", "llama3-9b", "--recipe", "te-current"), "llama3-8b"),
        (("block", "llama3-8b", "--recipe", "te-curent"), "te-current"),
        (("split", "missing.json", "--recipe", "te-current"), "missing.json"),
        (("block", "llama3-8b", "--recipe", "te-current"), "needs a GPU"),
        (("split", "llama3-8b", "--recipe", "te-current", "--execution", "emulated"), "this machine has none"),
    ],
)
def test_what_is_refused_is_one_line(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1
    assert list(Path().iterdir()) == []
