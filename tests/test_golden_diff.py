"""A change of the golden folder, told as a signed table."""

from __future__ import annotations

import subprocess

import pytest
from fp8parity.cli import main
from fp8parity.judging.references.loss import from_runs, path_of
from fp8parity.judging.references.timed import SpeedEntry, SpeedGolden
from fp8parity.records.cell import Mode
from fp8parity.records.schema import Measurement
from fp8parity.records.storage import name_of, write_json

LOSS = '[[loss]]\nmargin = {margin}\nwhy = "{why}"\n'
RULE = '[[rule]]\ncheck = "gemm"\nmetric = "fprop sqnr"\nlow = {low}\nhigh = 29\nwhy = "measured"\n'
NUMBERS = "check,metric,where,model,recipe,execution,value,source\n"
ONE, TWO = (
    "gemm,fprop sqnr,gaussian,tiny,te-current,native,{},a1\n",
    "gemm,fprop sqnr,zero-row,tiny,te-current,native,28.4,a1\n",
)
SOURCES = "source,records,device,packages,sha256\na1,set.zip,H200,torch 2,a1b2\n"


def commit(folder):
    for command in ("add -A", "-c user.name=t -c user.email=t@t commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)


@pytest.fixture
def repository(tmp_path, trajectory):
    """A committed golden folder, and a way to store a golden of ``gap`` and SNR in it."""
    golden = tmp_path / "golden"

    def store(name="nano", gap=0.0, snr=44.0, seeds=2):
        cell = trajectory().cell.model_copy(update={"model": name})
        runs = [trajectory(seed=s, gap=gap if s == 0 else 0.0, cell=cell) for s in range(seeds)]
        made = from_runs(runs, [Measurement(metric="total sqnr", where="initial", value=snr)])
        write_json(path_of(golden, name, "topics"), made)

    store()
    store("other")
    (golden / "policy.toml").write_text(LOSS.format(margin=0.005, why="at first") + RULE.format(low=28.0))
    (golden / "numerics").mkdir()
    (golden / "numerics" / "shared.csv").write_text(NUMBERS + ONE.format(28.5))
    (golden / "numerics" / "sources.csv").write_text(SOURCES)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
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
    assert any(
        "golden/loss/nano-topics.json: nano on topics: seed 0 tail loss" in x and x.endswith("(+1.000%)") for x in found
    )
    assert any("seeds 2 -> 3" in x for x in found)
    assert any("seed 2: new, " in x for x in found)
    assert any("gradients total sqnr @ initial: value 44.0 -> 43.5 (-0.5)" in x for x in found)


def test_seeds_that_are_gone_are_named(repository, capsys):
    golden, store = repository
    store(seeds=1)
    found = lines(golden, capsys)
    assert any("seeds 2 -> 1" in x for x in found)
    assert any("seed 1 removed" in x for x in found)


def test_new_and_deleted_files(repository, capsys):
    golden, store = repository
    store("third")
    (golden / "loss" / "other-topics.json").unlink()
    found = lines(golden, capsys)
    assert "golden/loss/other-topics.json: deleted" in found
    assert any(x.startswith("golden/loss/third-topics.json: third on topics: new, 2 seeds") for x in found)


def test_rows_say_what_moved_and_why(repository, capsys):
    golden, _ = repository
    text = LOSS.format(margin=0.01, why="twice as wide") + RULE.format(low=27.6)
    added = '[[golden]]\nmodel = "1b"\nleast_seeds = 2\nwhy = "long runs"\n'
    (golden / "policy.toml").write_text(text + added)
    assert lines(golden, capsys) == [
        "golden/policy.toml: [[loss]] every cell: margin 0.005 -> 0.01 (+0.005), why changed (twice as wide)",
        "golden/policy.toml: [[rule]] check gemm, metric fprop sqnr: low 28.0 -> 27.6 (-0.4) (measured)",
        "golden/policy.toml: + [[golden]] model 1b: least_seeds = 2 (long runs)",
    ]


def test_a_row_that_is_gone_is_named(repository, capsys):
    golden, _ = repository
    (golden / "policy.toml").write_text(LOSS.format(margin=0.005, why="at first"))
    assert lines(golden, capsys) == ["golden/policy.toml: - [[rule]] check gemm, metric fprop sqnr (measured)"]


def test_rows_that_share_a_key_are_told_apart(repository, capsys):
    golden, _ = repository
    old = (golden / "policy.toml").read_text()
    (golden / "policy.toml").write_text(old + LOSS.format(margin=0.02, why="a second row"))
    assert lines(golden, capsys) == ["golden/policy.toml: + [[loss]] every cell (row 2): margin = 0.02 (a second row)"]


def test_rows_are_known_by_their_places(repository, capsys):
    golden, _ = repository
    rows = "".join(
        RULE.format(low=low).replace("low", f'where = "{where}"\nlow') for where, low in (("a", 26.0), ("b", 27.0))
    )
    (golden / "policy.toml").write_text((golden / "policy.toml").read_text() + rows)
    found = lines(golden, capsys)
    assert [line.split(": ")[1] for line in found] == [
        f"+ [[rule]] check gemm, metric fprop sqnr, where {where}" for where in "ab"
    ]


def test_a_row_with_lists_of_names_is_known_by_them(repository, capsys):
    golden, _ = repository
    old = (golden / "policy.toml").read_text()
    row = '[[loss]]\nrecipe = ["te-current", "te-block"]\nmargin = 0.02\nwhy = "a second row"\n'
    (golden / "policy.toml").write_text(old + row)
    assert lines(golden, capsys) == [
        "golden/policy.toml: + [[loss]] recipe te-current, te-block: margin = 0.02 (a second row)"
    ]


def test_measured_numbers_are_signed(repository, capsys):
    golden, _ = repository
    (golden / "numerics" / "shared.csv").write_text(NUMBERS + ONE.format(28.1) + TWO)
    assert lines(golden, capsys) == [
        "golden/numerics/shared.csv: gemm, fprop sqnr, gaussian, tiny, te-current, native: value 28.5 -> 28.1 (-0.4)",
        "golden/numerics/shared.csv: + gemm, fprop sqnr, zero-row, tiny, te-current, native: 28.4, a1",
    ]


def test_a_measured_number_that_is_gone_is_named(repository, capsys):
    golden, _ = repository
    (golden / "numerics" / "shared.csv").write_text(NUMBERS)
    assert lines(golden, capsys) == [
        "golden/numerics/shared.csv: - gemm, fprop sqnr, gaussian, tiny, te-current, native"
    ]


def test_sources_and_inventories_are_signed(repository, capsys):
    golden, _ = repository
    here = golden / "numerics"
    (here / "configurations.csv").write_text("recipe,execution,key,value\nte-current,native,format,HYBRID\n")
    (here / "modules.csv").write_text(f"model,recipe,modules,sha256\nmicro,te-current,14,{'0' * 64}\n")
    commit(golden)
    (here / "configurations.csv").write_text("recipe,execution,key,value\nte-current,native,format,E4M3\n")
    (here / "modules.csv").write_text(f"model,recipe,modules,sha256\nmicro,te-current,13,{'0' * 64}\n")
    (here / "sources.csv").write_text(SOURCES.replace("H200", "H100"))
    assert lines(golden, capsys) == [
        "golden/numerics/configurations.csv: - te-current, native, format, HYBRID",
        "golden/numerics/configurations.csv: + te-current, native, format, E4M3",
        "golden/numerics/modules.csv: micro, te-current: modules 14 -> 13",
        "golden/numerics/sources.csv: a1: device H200 -> H100",
    ]


def test_layout_alone_is_said(repository, capsys):
    golden, _ = repository
    path = golden / "policy.toml"
    path.write_text(f"# a comment\n{path.read_text()}")
    assert lines(golden, capsys) == ["golden/policy.toml: only its layout changed"]


def test_throughput_goldens(repository, capsys, trajectory):
    golden, _ = repository

    def store(**ratios):
        cells = {
            f"{name} native": SpeedEntry(
                ratio=r, low=r, high=r, pairs=11, memory=0.8, tokens_per_second=r, bf16_tokens_per_second=1, mode=Mode.COMPILED,
                tokens=8, flops_per_token=6.0, commit="c",
            )
            for name, r in ratios.items()
        }  # fmt: skip
        made = SpeedGolden(gpu="H200", model="small", cells=cells, provenance=trajectory().provenance)
        write_json(golden / "throughput" / "h200" / "small.json", made)

    store(a=1.5, b=1.2)
    commit(golden)
    store(a=1.4, c=1.1)
    name = "golden/throughput/h200/small.json"
    ratio = (
        "ratio 1.5 -> 1.4 (-0.1); low 1.5 -> 1.4 (-0.1); high 1.5 -> 1.4 (-0.1); tokens_per_second 1.5 -> 1.4 (-0.1)"
    )
    assert lines(golden, capsys) == [
        f"{name}: H200, small, a native: 1.400x (was 1.500x, -0.100); {ratio}",
        f"{name}: H200, small, c native: 1.100x",
        f"{name}: H200, small, b native: removed",
    ]


def test_verdicts_on_records_that_turn_are_named(repository, capsys, trajectory, tmp_path):
    """A wider margin turns a failing recipe; BF16 stays as it is."""
    golden, store = repository
    store(seeds=3)
    (golden / "loss" / "other-topics.json").unlink()
    (golden / "policy.toml").write_text(LOSS.format(margin=0.005, why="the first reason"))
    commit(golden)
    (golden / "policy.toml").write_text(LOSS.format(margin=0.02, why="the second reason"))
    for s, gap in enumerate((0.0101, 0.0104, 0.0097)):
        for r in (trajectory(seed=s), trajectory("te-current", s, gap)):
            write_json(tmp_path / "records" / name_of(r), r)
    assert main(["golden", "diff", "HEAD", "--golden-dir", str(golden), "--records", str(tmp_path / "records")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == "1 of the verdicts on 6 records turn"
    assert out[-1].startswith("  te-current-nano-emulated loss parity: fail -> pass (the gap to BF16 is outside")


def test_an_unknown_revision_is_2(repository, capsys):
    golden, _ = repository
    assert main(["golden", "diff", "nowhere", "--golden-dir", str(golden)]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_damaged_golden_is_2(repository, capsys):
    golden, _ = repository
    path = golden / "loss" / "nano-topics.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7'))
    assert main(["golden", "diff", "HEAD", "--golden-dir", str(golden)]) == 2
    assert "golden/loss/nano-topics.json: its checksum does not match" in capsys.readouterr().err
