"""A change of the golden folder, told as a signed table."""

from __future__ import annotations

import subprocess

import pytest
from fp8parity.cli import main
from fp8parity.golden import from_runs, path_of
from fp8parity.judge_speed import SpeedEntry, SpeedGolden
from fp8parity.record import Measurement
from fp8parity.storage import write_json

LOSS = '[[loss]]\nmargin = {margin}\nwhy = "{why}"\n'
BOUND = '[[bound]]\ncheck = "gemm"\nmetric = "fprop sqnr"\nband = 0.5\nwhy = "measured"\n'
BOUND += "[bound.expect]\nte-current = {{ gaussian = {value} }}\n"


@pytest.fixture
def repository(tmp_path, trajectory):
    """A committed golden folder, and a way to store a golden of ``gap`` and SNR in it."""
    golden = tmp_path / "golden"

    def store(name="nano", gap=0.0, snr=44.0, seeds=2):
        runs = [trajectory(seed=s, gap=gap if s == 0 else 0.0) for s in range(seeds)]
        made = from_runs(runs, [Measurement(metric="total sqnr", where="initial", value=snr)])
        write_json(path_of(golden, name, "synthetic"), made)

    store()
    store("other")
    (golden / "tolerances.toml").write_text(LOSS.format(margin=0.005, why="at first") + BOUND.format(value=28.5))
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@t commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return golden, store


def lines(golden, capsys, code=0):
    assert main(["golden", "diff", "HEAD", "--golden-dir", str(golden)]) == code
    return capsys.readouterr().out.splitlines()


def test_nothing_changed(repository, capsys):
    assert lines(repository[0], capsys) == [f"{repository[0]} is as in HEAD"]


def test_goldens_are_signed(repository, capsys):
    golden, store = repository
    store(gap=0.01, snr=43.5, seeds=3)
    found = lines(golden, capsys)
    assert any("golden/nano-synthetic.json: nano on synthetic: seed 0 tail loss" in x and x.endswith("(+1.000%)") for x in found)
    assert any("seeds 2 -> 3" in x for x in found)
    assert any("seed 2 new" in x for x in found)
    assert any("gradients total sqnr @ initial 44 -> 43.5 (-0.5)" in x for x in found)
    store(seeds=1)
    found = lines(golden, capsys)
    assert any("seeds 2 -> 1" in x for x in found)
    assert any("seed 1 removed" in x for x in found)


def test_new_and_deleted_files(repository, capsys):
    golden, store = repository
    store("third")
    (golden / "other-synthetic.json").unlink()
    found = lines(golden, capsys)
    assert "golden/other-synthetic.json: deleted" in found
    assert any(x.startswith("golden/third-synthetic.json: nano on synthetic: new, 2 seeds") for x in found)


def test_rows_say_what_moved_and_why(repository, capsys):
    golden, _ = repository
    text = LOSS.format(margin=0.01, why="twice as wide") + BOUND.format(value=28.1)
    added = '[[golden]]\nmodel = "1b"\nleast_seeds = 2\nwhy = "long runs"\n'
    (golden / "tolerances.toml").write_text(text + added)
    assert lines(golden, capsys) == [
        "golden/tolerances.toml: [[loss]] every cell: margin 0.005 -> 0.01 (+0.005), another why (twice as wide)",
        "golden/tolerances.toml: [[bound]] check gemm, metric fprop sqnr: expect.te-current.gaussian 28.5 -> 28.1 (-0.4) (measured)",
        "golden/tolerances.toml: + [[golden]] model 1b: least_seeds = 2 (long runs)",
    ]
    (golden / "tolerances.toml").write_text(LOSS.format(margin=0.005, why="at first"))
    assert lines(golden, capsys) == ["golden/tolerances.toml: - [[bound]] check gemm, metric fprop sqnr (measured)"]


def test_rows_that_share_a_key_are_told_apart(repository, capsys):
    golden, _ = repository
    old = (golden / "tolerances.toml").read_text()
    (golden / "tolerances.toml").write_text(old + LOSS.format(margin=0.02, why="a second row"))
    assert lines(golden, capsys) == ["golden/tolerances.toml: + [[loss]] every cell (row 2): margin = 0.02 (a second row)"]


def test_layout_alone_is_said(repository, capsys):
    golden, _ = repository
    path = golden / "tolerances.toml"
    path.write_text(f"# a comment\n{path.read_text()}")
    assert lines(golden, capsys) == ["golden/tolerances.toml: only its layout or provenance changed"]


def test_throughput_goldens(repository, capsys, trajectory):
    golden, _ = repository

    def store(**ratios):
        cells = {
            f"{name} native": SpeedEntry(
                ratio=r,
                low=r,
                high=r,
                pairs=11,
                memory=0.8,
                tokens_per_second=1,
                bf16_tokens_per_second=1,
                mode="compiled",
                tokens=8,
                flops_per_token=6.0,
                commit="c",
            )
            for name, r in ratios.items()
        }
        made = SpeedGolden(gpu="H200", model="small", cells=cells, provenance=trajectory().provenance)
        write_json(golden / "throughput" / "h200" / "small.json", made)

    store(a=1.5, b=1.2)
    subprocess.run(["git", "add", "-A"], cwd=golden, check=True)
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "y"], cwd=golden, check=True)
    store(a=1.4, c=1.1)
    name = "golden/throughput/h200/small.json"
    assert lines(golden, capsys) == [
        f"{name}: H200, small, a native: 1.400x (was 1.500x, -0.100)",
        f"{name}: H200, small, c native: 1.100x",
        f"{name}: H200, small, b native: removed",
    ]


def test_what_cannot_be_read_is_2(repository, capsys):
    golden, _ = repository
    assert main(["golden", "diff", "nowhere", "--golden-dir", str(golden)]) == 2
    assert "nowhere" in capsys.readouterr().err
    path = golden / "nano-synthetic.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7'))
    assert main(["golden", "diff", "HEAD", "--golden-dir", str(golden)]) == 2
    assert "golden/nano-synthetic.json: its checksum does not match" in capsys.readouterr().err
