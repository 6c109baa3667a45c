"""The command line: exit status and what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.recipes import RECIPES
from fp8parity.record import CellKey, Measurement, Measurements
from fp8parity.storage import file_name, write_json

GOLDEN = str(Path(__file__).parents[1] / "golden")


def test_recipes_lists_every_execution_and_a_reason(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    for name in RECIPES:
        assert name in out
    assert out.count("runs here") >= 10


def test_power_agrees_with_the_statistics(capsys):
    from fp8parity.statistics import seeds_needed

    assert main(["power", "--golden-dir", GOLDEN, "--sd", "0.1%", "--margin", "0.25%"]) == 0
    out = capsys.readouterr().out
    assert f"true gap 0.000%: {seeds_needed(0.001, 0.0025, 0.0, 0.05 / 3)} seeds" in out
    assert main(["power", "--golden-dir", GOLDEN, "--sd", "5%", "--margin", "0.1%"]) == 0
    assert "more than 400 seeds" in capsys.readouterr().out


def test_power_from_records(trajectory, tmp_path, capsys):
    for seed, gap in enumerate((0.001, 0.002, 0.003)):
        for run in (trajectory(seed=seed), trajectory("te-current", seed, gap)):
            write_json(tmp_path / file_name(run.cell, f"seed{seed}"), run)
    assert main(["power", "--golden-dir", GOLDEN, "--model", "nano", "--records", str(tmp_path)]) == 0
    assert "spread of a seed's gap 0.100%" in capsys.readouterr().out
    assert main(["power", "--golden-dir", GOLDEN, "--model", "nano", "--recipe", "te-curren", "--records", str(tmp_path)]) == 2
    assert "did you mean te-current" in capsys.readouterr().err


def measured(trajectory, value: float) -> Measurements:
    cell = CellKey(model="tiny", recipe="te-current", execution="emulated", corpus="synthetic")
    row = Measurement(metric="fprop sqnr", where="gaussian", value=value)
    return Measurements(cell=cell, check="gemm", values=[row], provenance=trajectory().provenance, session="s")


@pytest.mark.parametrize(("value", "code"), [(28.5, 0), (24.0, 1), (55.6, 1)])
def test_judge_by_its_exit_status(trajectory, tmp_path, capsys, value, code):
    record = measured(trajectory, value)
    write_json(tmp_path / file_name(record.cell, "gemm"), record)
    report = tmp_path / "out" / "report.md"
    reports = ["--report", str(report), "--report", str(tmp_path / "report.json")]
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN, *reports]) == code
    assert json.loads((tmp_path / "report.json").read_text())["sentence"] in report.read_text()
    assert ("**Refuse: te-current emulated on tiny fails (gemm: 1 of 1 numbers" in report.read_text()) == bool(code)
    assert ("**Accept: all 1 checks are green.**" in report.read_text()) != bool(code)
    assert "te-current" in capsys.readouterr().out


def test_bounds_prints_rows_to_paste(trajectory, tmp_path, capsys):
    record = measured(trajectory, 28.46)
    write_json(tmp_path / file_name(record.cell, "gemm"), record)
    assert main(["bounds", str(tmp_path)]) == 0
    assert 'te-current = { "gaussian" = 28.46 }' in capsys.readouterr().out


def test_bounds_of_a_first_step_are_rows_that_judge_it(trajectory, tmp_path, capsys):
    """Means over seeds, of the model and of its parameters, named by the model."""
    for s in (0, 1):
        runs = (("bf16", 2.0, 0.5), ("te-current", 1.9 + 0.02 * s, 0.4))
        for made in (trajectory(r, s, grad_norm=[a] + [1.0] * 11, first_gradients={"w": b}) for r, a, b in runs):
            write_json(tmp_path / file_name(made.cell, f"seed{s}"), made)
    assert main(["bounds", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert '# check = "loss parity", metric = "first gradient norm"\n[bound.expect]\nte-current = { "nano" = 0.955 }' in text
    assert '# check = "loss parity", metric = "first gradient"\n[bound.expect]\nte-current = { "nano" = 0.8 }' in text
    assert "bf16" not in text


def test_bad_input_is_2_and_one_line(tmp_path, capsys):
    assert main(["judge", str(tmp_path), "--golden-dir", GOLDEN]) == 2
    assert capsys.readouterr().err == f"fp8parity: {tmp_path} holds no records\n"
    assert main(["judge", str(tmp_path), "--golden-dir", str(tmp_path)]) == 2


def test_a_reader_that_stops_is_no_error():
    """`fp8parity judge RECORDS | head -1`."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "fp8parity", "judge", str(root / "golden" / "records" / "upgrades" / "h200-torchao-0.17.0.zip")]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 2


def test_step_times_of_records_become_goldens_whoever_reads(tmp_path, monkeypatch):
    """All of them, also where the reader of the output has gone: `golden store SET | head -1`."""
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "tolerances.toml").write_text((Path(GOLDEN) / "tolerances.toml").read_text())
    command = [sys.executable, "-m", "fp8parity", "golden", "store", f"{GOLDEN}/records/h200.zip", "--golden-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.close()
    stored = {p.name: len(json.loads(p.read_text())["cells"]) for p in (tmp_path / "throughput" / "nvidia-h200").glob("*.json")}
    assert stored == {"small.json": 9, "base.json": 9, "1b.json": 9}
    assert main(["golden", "store", f"{GOLDEN}/records/upgrades/epyc-torchao-0.18.0.zip", "--golden-dir", str(tmp_path)]) == 2
