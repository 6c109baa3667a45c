"""Rows that can apply to nothing are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fp8parity.cli import main
from fp8parity.gate import plugin, selection
from fp8parity.judging import policy as policies
from fp8parity.judging import references
from fp8parity.judging.coverage import refuse_unused
from fp8parity.judging.policy import GoldenRow, LossRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Band, Complete, Numbers, Rule
from fp8parity.judging.references import Goldens
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.references.timed import SpeedGolden
from fp8parity.recipes.registry import catalogue
from fp8parity.records.cell import TRAINER_CORPUS, Cell, Execution
from fp8parity.records.check_names import CHECKS
from fp8parity.trainers import spec
from fp8parity.workload.presets import presets
from sessions import DAY, stored
from test_gate_start import context
from timings import GPU, HERE
from two_sides import runs, save

WHY = "a made-up row"
CELL = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)
KEY = NumberKey("gemm", "fprop sqnr", "gaussian", "nano", "te-current", Execution.EMULATED)
POLICY = Policy(
    path=Path("policy.toml"),
    loss=(LossRow(margin=0.005, seeds=(3,), why=WHY),),
    golden=(GoldenRow(least_seeds=8, why=WHY),),
    speed=(SpeedRow(band=0.05, memory_band=0.05, why=WHY),),
    rule=(Rule(check=("gemm",), low=28, high=29, why=WHY), Rule(check=("loss parity",), low=0.9, high=1.1, why=WHY)),
    band=(Band(check=("gemm",), band=0.5, why=WHY),),
    complete=(Complete(check="gemm", number=(Numbers(metric=("fprop sqnr",), where=("gaussian",)),), why=WHY),),
)


@pytest.fixture
def goldens(trajectory):
    numbers = MeasuredNumbers({"shared": {KEY: Number(28.5, "a1")}})
    return Goldens(
        loss={("nano", "topics"): from_runs([trajectory(seed=s) for s in range(8)], [])},
        throughput={(GPU, "base", "training-step"): SpeedGolden(gpu=GPU, model="base", cells={}, provenance=HERE)},
        numbers=numbers,
    )


LOSS = '[[loss]]\nmargin = 0.1\nwhy = "long enough"\n'
KNOWN = 'status = "fail"\nlink = "https://example.org/7"\nexpires = 2999-01-01\nwhy = "long enough"\n'
TYPOS = {
    LOSS + 'model = "shopgtp"': "unknown model 'shopgtp': did you mean shopgpt",
    LOSS + 'recipe = ["bf16", "te-curent"]': "unknown recipe 'te-curent': did you mean te-current",
    LOSS + 'corpus = "topic"': "unknown corpus 'topic': did you mean topics",
    LOSS + 'recipe = "ao-mxfp8"\nexecution = "fused"': "no cell has recipe ao-mxfp8 and execution fused",
    LOSS + 'model = "shopgpt"\ncorpus = "topics"': "no cell has model shopgpt and corpus topics",
    LOSS + 'model = "mine"\ncorpus = "topics"': "no cell has model mine and corpus topics",
    '[[alike]]\nrecipe = "te-block"\nbase = "te-curent"\nwhy = "long enough"': "unknown recipe 'te-curent': did you mean te-current",
    '[[speed]]\nband = 0.1\nmemory_band = 0.1\nmodel = "bas"\nwhy = "long enough"': "unknown model 'bas': did you mean base",
    '[[gemm]]\nband = 0.1\nplace_band = 0.1\nerror = 0.1\nbf16_error = 0.01\nerror_band = 0.1\nmodel = "lama3-8b"\n'
    'why = "long enough"': "unknown model 'lama3-8b': did you mean llama3-8b",
    '[[rule]]\ncheck = "gem"\nlow = 0\nhigh = 1\nwhy = "long enough"': "unknown check 'gem': did you mean gemm",
    '[[rule]]\ncheck = "gemm"\nmetric = "fprop sqrn"\nlow = 0\nhigh = 1\nwhy = "long enough"': "'fprop sqrn': did you mean fprop sqnr",
    '[[band]]\ncheck = "gemm"\nmetric = "fprop sqrn"\nband = 1\nwhy = "long enough"': "unknown metric of gemm 'fprop sqrn': did",
    '[[trend]]\ncheck = "accumulation"\nmetric = "fprop bia"\nslack = 1\nwhy = "long enough"': "did you mean fprop bias",
    '[[complete]]\ncheck = "gemm"\nnumber = [{ metric = "fprop sqrn", where = "uniform" }]\nwhy = "long enough"': "fprop sqnr",
    '[[metric]]\nname = "fprop sqrn"\nbetter = "higher"\nunit = "dB"': "unknown metric 'fprop sqrn': did you mean fprop sqnr",
    '[[known]]\ncheck = "gem"\nsays = "off"\n' + KNOWN: "unknown check 'gem': did you mean gemm",
    '[[known]]\ncheck = "gemm"\nrecipe = "te-curent"\nsays = "off"\n' + KNOWN: "did you mean te-current",
    '[[known]]\ncheck = "gemm"\nnumber = [{ metric = "fprop sqrn", low = 0, high = 1 }]\n' + KNOWN: "did you mean fprop sqnr",
}  # fmt: skip
"""A row that can apply to nothing, and what a refusal says. ``shopgpt`` is a trainer of the session or of the records."""
FITTING = {
    "one of several models": LOSS + 'model = ["mine", "another"]',
    "an own model": LOSS + 'model = "mine"\ncorpus = "own-batches"',
    "a trainer": LOSS + 'model = "shopgpt"\nrecipe = "te-current"',
    "any trainer": LOSS + 'recipe = "my-fp8"\ncorpus = "trainer-data"',
    "a timed shape": LOSS + 'model = "llama3-8b"',
    "a timed check": '[[known]]\ncheck = "GEMM throughput"\nmodel = "codonfm-5b"\nsays = "off"\n' + KNOWN,
    "a number of a run": '[[known]]\ncheck = "loss parity"\nnumber = [{ metric = "tail gap", low = 0, high = 1 }]\n' + KNOWN,
}  # fmt: skip


def own(folder: Path, row: str) -> Path:
    """A golden folder that adds a row to the shipped ones."""
    name = "known_failures.toml" if row.startswith("[[known]]") else policies.FILE
    (folder / policies.FILE).write_text('[[extends]]\ngoldens = "shipped"\n')
    with (folder / name).open("a") as file:
        file.write(row)
    return folder


def trainers(folder: Path) -> list[spec.Trainer]:
    """The trainer shopgpt with the recipes bf16 and te-current."""
    (folder / "trainers.toml").write_text(
        '[trainer.shopgpt]\ncommand = ["{python}", "t.py", "{seed}", "{steps}", "{out}"]\nlog = "{out}/a"\nsteps = 20\n'
        "[trainer.shopgpt.recipes]\nbf16 = []\nte-current = []\n"
    )
    return spec.load(folder / "trainers.toml")


def at_gate(folder: Path) -> None:
    """Refuse what a session with the trainer shopgpt refuses as it begins."""
    own = SimpleNamespace(name="mine", corpus="own-batches", fusable=False)
    models = presets() | {t.name: t for t in trainers(folder)} | {"mine": own}
    rules, goldens = policies.load(folder, DAY), stored()[0]
    session = context(models=models, golden_dir=folder)
    vars(session).update(policy=rules, goldens=goldens)
    plugin._refuse_unused_rows(selection.suite_cells(session.models), session)


@pytest.mark.parametrize("row", TYPOS)
def test_row_that_can_apply_to_nothing_is_refused_at_start(tmp_path, row):
    line = 1 if row.startswith("[[known]]") else 3
    with pytest.raises(ValueError, match=rf":{line}: \[\[\w+\]\] can apply to nothing: ") as error:
        at_gate(own(tmp_path, row))
    assert TYPOS[row] in str(error.value)


@pytest.mark.parametrize("command", ["judge", "compare"])
@pytest.mark.parametrize("row", [LOSS + 'model = "shopgtp"', '[[known]]\ncheck = "gem"\nsays = "off"\n' + KNOWN])
def test_row_that_can_apply_to_nothing_is_refused_by(tmp_path, trajectory, capsys, monkeypatch, command, row):
    """By the commands, which know the trainers of the records; ``at_gate`` sees all rows."""
    monkeypatch.setattr(references, "load", lambda folder: stored()[0])
    given = runs(trajectory)
    given += [r.model_copy(update={"cell": r.cell.model_copy(update={"model": "shopgpt", "corpus": TRAINER_CORPUS})}) for r in given]  # fmt: skip
    sets = [save(tmp_path / "set", given)]
    sets += [save(tmp_path / "new", runs(trajectory, "2.13.0"))] if command == "compare" else []
    (tmp_path / "golden").mkdir()
    assert main([command, *map(str, sets), "--golden-dir", str(own(tmp_path / "golden", row))]) == 2
    assert TYPOS[row] in capsys.readouterr().err


@pytest.mark.parametrize("what", FITTING)
def test_row_of_something_that_is_not_selected_is_accepted(tmp_path, what):
    at_gate(own(tmp_path, FITTING[what]))


def test_trainer_with_a_golden_needs_no_session(tmp_path, goldens):
    """Its recipes are not known then, but its name is."""
    stored = Goldens(loss={("shopgpt", TRAINER_CORPUS): goldens.loss["nano", "topics"]})
    refuse_unused(policies.load(own(tmp_path, LOSS + 'model = "shopgpt"\nrecipe = "my-fp8"'), DAY), stored, catalogue(), CHECKS)  # fmt: skip
    with pytest.raises(ValueError, match="unknown model 'shopgtp': did you mean shopgpt"):
        refuse_unused(policies.load(own(tmp_path, LOSS + 'model = "shopgtp"'), DAY), stored, catalogue(), CHECKS)


def test_metric_of_the_check_of_a_plugin_needs_no_record(tmp_path):
    row = '[[rule]]\ncheck = "mine"\nmetric = "my gain"\nlow = 0\nhigh = 1\nwhy = "long enough"\n'
    rules = policies.load(own(tmp_path, row + '[[metric]]\nname = "my gain"\nbetter = "higher"\nunit = "dB"\n'), DAY)
    refuse_unused(rules, Goldens(), catalogue(), {*CHECKS, "mine"})
