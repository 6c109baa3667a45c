"""Calibration: noise and signal of made-up runs whose gaps are known, and the command."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faults.runs import calibration
from fp8parity.cli import main
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import name_of, write_json
from fp8parity.training.variants import FAULTS
from fp8parity_lab.cli.schedule import table
from fp8parity_lab.schedules import VISIBLE, calibrate, choice
from sessions import ROOT

STEPS, TAIL = 80, 16
SEEDS = (0, 1, 2)
Make = Callable[..., Trajectory]


def maker(trajectory: Make) -> Make:
    """Makes a run of 80 steps whose gap to BF16 is ``gap`` at every step, plus ``early`` in the second window."""

    def make(
        name: str = "", seed: int = 0, gap: float = 0.0, early: float = 0.0, end: float = 3.0, **changes: object
    ) -> Trajectory:
        base = trajectory("te-current" if name == "recipe" else "bf16", seed)
        loss = np.linspace(4.0 + 0.01 * seed, end, STEPS) * (1 + gap)
        loss[8:16] *= 1 + early
        given = {
            "loss": loss.tolist(),
            "schedule": base.schedule | {"steps": STEPS, "tail": TAIL},
            "unigram": 4.0,
            "bigram": 3.4,
        }
        return base.model_copy(update=given | {"variant": "" if name == "recipe" else name} | changes)

    return make


def standard(run: Make, **faults: tuple[float, float]) -> list[Trajectory]:
    """BF16, two replicas with gaps of 1e-6, a recipe with gaps of -1e-4, 0 and 1e-4, and faults (tail gap, early gap)."""
    found = []
    for s in SEEDS:
        found += [
            run(seed=s),
            run("replica1", s, 1e-6),
            run("replica2", s, -1e-6 * s),
            run("recipe", s, 1e-4 * (s - 1)),
        ]
        found += [run(name.replace("_", " "), s, gap, early) for name, (gap, early) in faults.items()]
    return found


@pytest.fixture
def run(trajectory: Make) -> Make:
    return maker(trajectory)


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
    assert found.learned == pytest.approx((4.0 - np.mean(np.linspace(4.0, 3.0, STEPS)[-TAIL:])) / 0.6)
    assert f"{'outputs shifted':<28}  3     +5.0000 (0.0000)    500.0" in table(found)


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


def test_the_accepted_schedule_with_the_largest_signal_is_chosen(run: Make):
    found = [calibrate(standard(run, outputs_shifted=(gap, 0))) for gap in (0.02, 0.05, 0.0001)]
    assert choice(found) is found[1]
    assert choice(found[2:]) is None


def test_the_schedule_of_micro_is_accepted():
    found = calibrate(calibration("micro"))
    assert found.accepted
    assert found.signal > 100
    assert found.learned is not None and 1.1 < found.learned < 1.3
    assert {line.seen_by for line in found.lines if line.name in {f.name for f in FAULTS}} == {"tail", "band", "BF16"}
    assert min(line.control_ratio for line in found.lines if line.seen_by) > VISIBLE


def test_what_a_calibration_needs(run: Make):
    with pytest.raises(ValueError, match="replicas and recipes"):
        calibrate([run(seed=s) for s in SEEDS])
    with pytest.raises(ValueError, match="one schedule and two BF16 seeds"):
        calibrate([*standard(run), run(seed=4, spec_hash="other")])


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_the_command_trains_and_prints_a_table(tmp_path, capsys):
    change = "steps=16,warmup=4,tail=8,rows=1,length=32"
    arguments = ["--model", "micro", "--change", change, "--seeds", "2", "--replicas", "1"]
    arguments += ["--recipe", "te-current", "--fault", "outputs shifted", "--device", "cpu", "--records", str(tmp_path)]
    assert main(["schedule", *arguments]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "micro on topics, 16 steps of 32 tokens, learning rate 0.0015"
    assert [line.split("  ")[1].strip() for line in out[4:7]] == ["replica1", "outputs shifted", "te-current emulated"]
    assert any("of the way to the bigram entropy, below 50%" in line for line in out)
    assert out[-1] == "choice: none; no candidate was accepted"
    assert main(["schedule", "--recipe", "ao-rowise", "--records", str(tmp_path / "none")]) == 2
    assert "did you mean ao-rowwise" in capsys.readouterr().err
    assert main(["schedule", "--fault", "outputs shiftd", "--records", str(tmp_path / "none")]) == 2
    assert "did you mean outputs shifted" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["schedule", "--seeds", "1"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("steps=20", "tail is 60, and the schedule has 20 steps; change both"),
        ("steps=many", "steps needs a value of type int, got 'many'"),
    ],
)
def test_a_change_that_no_schedule_can_have_is_said_before_training(change, words, capsys):
    assert main(["schedule", "--model", "micro", "--change", change]) == 2
    assert words in capsys.readouterr().err


Calibrate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(trajectory: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Calibrate:
    """It writes the runs of a schedule in which shifted outputs stand at ``gap``, and runs the command with them."""

    def call(*options: str, gap: float = 0.05) -> tuple[int, str, str]:
        for r in standard(maker(trajectory), outputs_shifted=(gap, 0)):
            write_json(tmp_path / "set" / name_of(r), r.model_copy(update={"grad_norm": [1.0] * STEPS}))
        code = main(["schedule", "--from", str(tmp_path / "set"), "--golden-dir", str(ROOT / "golden"), *options])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("gap", "code", "last"),
    [
        (0.05, 0, "  accepted: each of 1 planted faults shows at 10 sd or more, or at 10 bands of the canary"),
        (0.0005, 1, "  refused: shifted outputs stand below 10 sd in the tail"),
    ],
)
def test_a_refused_schedule_is_1(command: Calibrate, gap: float, code: int, last: str):
    found, out, err = command(gap=gap)
    assert (found, err) == (code, "")
    assert last in out.splitlines()


def test_a_set_that_cannot_be_calibrated_is_2(tmp_path: Path, trajectory: Make, capsys: pytest.CaptureFixture[str]):
    write_json(tmp_path / name_of(trajectory()), trajectory())
    assert main(["schedule", "--from", str(tmp_path)]) == 2
    assert f"{tmp_path}: a calibration needs one schedule and two BF16 seeds" in capsys.readouterr().err


def test_calibrate_of_trainers_refuses_runs_of_a_schedule(command: Calibrate, tmp_path: Path, capsys):
    command()
    assert main(["calibrate", "--from", str(tmp_path / "set"), "--golden-dir", str(ROOT / "golden")]) == 2
    assert "a calibration needs BF16 of a trainer" in capsys.readouterr().err
