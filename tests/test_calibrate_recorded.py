"""``fp8parity calibrate --from``: the exit status of recorded runs, and the options that say nothing beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import calibrations
import pytest
from calibrations import STEPS, Make, standard
from fp8parity.cli import main
from fp8parity.records.storage import name_of, write_json
from sessions import ROOT

Calibrate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def calibrate(trajectory: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Calibrate:
    """It writes the runs of a schedule in which shifted outputs stand at ``gap``, and runs the command with them."""

    def call(*options: str, gap: float = 0.05) -> tuple[int, str, str]:
        for r in standard(calibrations.maker(trajectory), outputs_shifted=(gap, 0)):
            write_json(tmp_path / "set" / name_of(r), r.model_copy(update={"grad_norm": [1.0] * STEPS}))
        code = main(["calibrate", "--from", str(tmp_path / "set"), "--golden-dir", str(ROOT / "golden"), *options])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("gap", "code", "last"),
    [
        (0.05, 0, "  accepted: each of 1 planted faults shows at 10 sd or more, or at 10 bands of the canary"),
        (0.0005, 1, "  refused: shifted outputs stand below 10 sd in the tail"),
    ],
)
def test_a_refused_schedule_is_1(calibrate: Calibrate, gap: float, code: int, last: str):
    found, out, err = calibrate(gap=gap)
    assert (found, err) == (code, "")
    assert last in out.splitlines()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model", "base"], "--model"),
        (["--recipe", "te-*"], "--recipe"),
        (["--fault", "outputs shifted"], "--fault"),
        (["--seeds", "1"], "--seeds"),
        (["--corpus", "synthetic", "--change", "steps=8", "--replicas", "1"], "--corpus and --change and --replicas"),
        (["--device", "cpu", "--records", "elsewhere"], "--device and --records"),
    ],
)
def test_what_to_train_is_refused_beside_records(calibrate: Calibrate, options: list[str], named: str):
    code, out, err = calibrate(*options)
    assert (code, out) == (2, "")
    assert f"--from calibrates what is on record, and trains nothing; leave out {named}\n" in err
    assert len(err.splitlines()) == 1


def test_a_set_that_cannot_be_calibrated_is_2(tmp_path: Path, trajectory: Make, capsys: pytest.CaptureFixture[str]):
    write_json(tmp_path / name_of(trajectory()), trajectory())
    assert main(["calibrate", "--from", str(tmp_path)]) == 2
    assert f"{tmp_path}: a calibration needs one schedule and two BF16 seeds" in capsys.readouterr().err
