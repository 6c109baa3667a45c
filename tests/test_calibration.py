"""Calibration: noise and signal of made-up runs whose gaps are known, and the command on a short schedule."""

from __future__ import annotations

import math
from pathlib import Path

import calibrations
import numpy as np
import pytest
from calibrations import SEEDS, STEPS, TAIL, Make, standard
from fp8parity.cli import main
from fp8parity.cli.calibrate import table
from fp8parity.judging.calibration import calibrate, canary_ratios
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Band
from fp8parity.records.schema import Measurement, Measurements


@pytest.fixture
def run(trajectory: Make) -> Make:
    return calibrations.maker(trajectory)


def test_noise_and_signal(run: Make):
    found = calibrate(standard(run, outputs_shifted=(0.05, 0), loss_in_BF16=(0, 0.01), weights_stale=(0.0002, 0)))
    lines = {line.name: line for line in found.lines}
    assert found.noise == pytest.approx(1e-4)
    assert found.replica_noise == pytest.approx(math.sqrt((0 + 2e-12) / 4))
    assert (lines["outputs shifted"].mean, lines["outputs shifted"].tail_ratio) == pytest.approx((0.05, 500))
    assert found.signal == pytest.approx(500)
    assert {n: line.seen_by for n, line in lines.items() if line.seen_by} == {
        "outputs shifted": "tail",
        "loss in BF16": "band",
        "weights stale": "BF16",
    }
    assert found.accepted
    assert found.learnt == pytest.approx((4.0 - np.mean(np.linspace(4.0, 3.0, STEPS)[-TAIL:])) / 0.6)
    assert f"{'outputs shifted':<28}  3     +5.0000 (0.0000)    500.0" in table(found)


def test_a_fault_that_nothing_sees_refuses_a_schedule(run: Make):
    found = calibrate(standard(run, outputs_shifted=(0.05, 0), new_fault=(0.00002, 0)))
    assert found.problems == ("nothing sees: new fault",)


@pytest.mark.parametrize(
    ("early", "canary", "problems"),
    [
        (0, 9.99, ("nothing sees: new fault",)),
        (0, 10.0, ()),
        (0.00049, 0, ("nothing sees: new fault",)),
        (0.00051, 0, ()),
    ],
)
def test_a_fault_is_seen_from_ten_units_of_noise_on(run: Make, early: float, canary: float, problems: tuple[str, ...]):
    """A window that holds 6 early steps of 10 moves by 60% of them. BF16 repeats to 0.003% in a window at best."""
    found = calibrate(standard(run, outputs_shifted=(0.05, 0), new_fault=(0, early)), {"new fault": canary})
    assert found.problems == problems


@pytest.mark.parametrize(
    ("gap", "end", "problem"), [(0.0005, 3.0, "shifted outputs stand below 10 sd"), (0.05, 3.9, "below 50%")]
)
def test_a_schedule_without_signal_or_without_context_is_refused(run: Make, gap: float, end: float, problem: str):
    runs = [
        r.model_copy(update={"loss": (np.asarray(r.loss) + (end - 3.0)).tolist()})
        for r in standard(run, outputs_shifted=(gap, 0))
    ]
    found = calibrate(runs)
    assert not found.accepted
    assert any(problem in p for p in found.problems)


def test_a_run_that_stopped_is_infinitely_far_away(run: Make):
    runs = standard(run, outputs_shifted=(0.05, 0))
    stopped = [r.model_copy(update={"loss": r.loss[:60]}) if r.variant == "outputs shifted" else r for r in runs]
    found = calibrate(stopped)
    assert found.signal == math.inf
    assert [line.sd for line in found.lines if line.name == "outputs shifted"] == [0.0], "it has no spread"


def test_what_a_calibration_needs(run: Make):
    with pytest.raises(ValueError, match="replicas and recipes"):
        calibrate([run(seed=s) for s in SEEDS])
    with pytest.raises(ValueError, match="one schedule and two BF16 seeds"):
        calibrate([*standard(run), run(seed=4, spec_hash="other")])


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_the_command_trains_and_prints_a_table(tmp_path, capsys):
    arguments = [
        "--model",
        "micro",
        "--change",
        "steps=16,warmup=4,tail=8,rows=1,length=64",
        "--seeds",
        "2",
        "--replicas",
        "1",
    ]
    arguments += ["--recipe", "te-current", "--fault", "outputs shifted", "--device", "cpu", "--records", str(tmp_path)]
    assert main(["calibrate", *arguments]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "micro on topics, 16 steps of 64 tokens, learning rate 0.0015"
    assert [line.split("  ")[1].strip() for line in out[4:7]] == ["replica1", "outputs shifted", "te-current emulated"]
    assert any("of the way to the bigram entropy, below 50%" in line for line in out)
    assert out[-1] == "choice: none; no candidate was accepted"
    assert main(["calibrate", "--recipe", "ao-rowise", "--records", str(tmp_path / "none")]) == 2
    assert "did you mean ao-rowwise" in capsys.readouterr().err
    assert main(["calibrate", "--fault", "outputs shiftd", "--records", str(tmp_path / "none")]) == 2
    assert "did you mean outputs shifted" in capsys.readouterr().err
    assert main(["calibrate", "--seeds", "1"]) == 2
    assert not (tmp_path / "none").exists()


def test_the_canary_moves_in_units_of_its_bands(trajectory: Make):
    """A canary without bands sees no fault. One whose number is missing without the fault is named."""
    sound = Measurements(
        cell=trajectory().cell, check="canary", values=[Measurement(metric="m", where="w", value=1.0)], provenance=trajectory().provenance,
        session="s",
    )  # fmt: skip
    faulty = sound.model_copy(
        update={"variant": "outputs shifted", "values": [Measurement(metric="m", where="w", value=9.0)]}
    )
    assert canary_ratios([sound, faulty], Policy(path=Path("policy.toml"))) == {"outputs shifted": 0.0}
    banded = Policy(path=Path("policy.toml"), band=(Band(check=("canary",), band=0.5, why="a made-up row"),))
    assert canary_ratios([sound, faulty], banded) == {"outputs shifted": 16.0}
    elsewhere = faulty.model_copy(update={"values": [Measurement(metric="m", where="x", value=9.0)]})
    with pytest.raises(
        ValueError,
        match="the canary with 'outputs shifted' holds m @ x, which the canary without a fault does not hold",
    ):
        canary_ratios([sound, elsewhere], Policy(path=Path("policy.toml")))
