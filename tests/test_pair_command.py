"""The commands import and verdict: exit status, reports, and nothing half-written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from curves import curve
from fp8parity.cli import main
from log_writers import automodel, megatron, megatron_tensorboard


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Runs of one seed: BF16, FP8, FP8 with a gap of 1%, and FP8 of another seed."""
    monkeypatch.chdir(tmp_path)
    automodel(tmp_path / "bf16", curve())
    megatron_tensorboard(tmp_path / "fp8", curve(chaos=1))
    megatron(tmp_path / "gap", curve(chaos=1).with_gap(0.01))
    automodel(tmp_path / "other", curve(seed=9))
    automodel(tmp_path / "again", curve(chaos=2))
    for chaos in (0, 1):
        lines = "".join(f"{s},{x!r}\n" for s, x in enumerate(curve(chaos=chaos).loss))
        (tmp_path / f"own-{chaos}.csv").write_text(f"step,my\n{lines}")
    return tmp_path


STATUS = [
    ("bf16 fp8", 0, "Accept: pass, consistent with parity, on one pair; noise between seeds assumed 0.06% (published"),
    ("bf16 gap.log", 1, "Refuse: fail, "),
    ("bf16 other", 2, "Cannot say: inconclusive, "),
    ("bf16 fp8 --seed other other", 1, "equal BF16's to the bit"),
    ("bf16 fp8 --repeat again", 0, "parity with BF16, on one pair and repeats of BF16"),
    ("bf16 fp8 --recipe te-mxfp8", 0, "convergence --model micro --recipe te-mxfp8"),
    ("own-0.csv own-1.csv --loss my", 0, "Accept"),
]
REFUSED = [
    ("own-0.csv own-1.csv", "--loss KEY"),
    ("bf16 fp8 --recipe te-curent --report out.md", "unknown recipe 'te-curent': did you mean te-current"),
    ("bf16 gap.log --report out.pdf", "no renderer for '.pdf'"),
    ("bf16 fp8 --tail 0", "above 0 and at most half of the run"),
    ("bf16 fp8 --until -5", "they share no point with a finite loss up to -5"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), STATUS)
def test_verdict_gives_its_exit_status(arguments, code, words, folder, capsys):
    assert main(["verdict", *arguments.split()]) == code
    out = capsys.readouterr().out
    assert (
        words in out
        and out.count("Not checked") == 1
        and "fp8parity run numerics convergence --model micro --recipe" in out
    )


@pytest.mark.parametrize("option", ["--margin", "--spread"])
def test_share_that_lacks_its_sign_is_refused(option, folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["verdict", "bf16", "fp8", option, "0.5"])
    assert f"argument {option}: 0.5 is 50%; write 0.5% or 50%" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_wrong_arguments_are_refused_in_one_line(arguments, words, folder, capsys):
    assert main(["verdict", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and not list(folder.glob("out.*"))


def test_imported_runs_give_the_same_verdict(folder, capsys):
    assert main(["import", "bf16", "--out", "folder"]) == 0 and Path("folder", "notes.json").write_text("{}")
    assert main(["import", "bf16", "fp8"]) == 0
    assert "400 points, steps 1 to 400 every 1; losses in full" in capsys.readouterr().out
    found = sorted(Path("imported").glob("*.json"))
    assert main(["verdict", "bf16", "fp8"]) == 0
    raw = capsys.readouterr().out
    assert main(["verdict", *map(str, found)]) == 0 and capsys.readouterr().out == raw
    assert main(["verdict", "folder", "fp8"]) == 0 and capsys.readouterr().out == raw
    for command in (("judge", "imported"), ("merge", "all.zip", "imported")):
        assert main([*command]) == 2
        assert "it is a run of fp8parity import, which fp8parity verdict reads" in capsys.readouterr().err
    found[0].write_text(found[0].read_text().replace('"steps"', '"tokens"', 1))
    assert main(["verdict", str(found[0]), "fp8"]) == 2 and "edited or damaged" in capsys.readouterr().err


def test_table_has_two_columns_and_its_own_command(folder, capsys):
    options = ["--margin", "0.3%", "--spread", "0.03%", "--until", "390", "--repeat", "again", "--recipe", "te-block"]
    assert main(["verdict", "bf16", "fp8", *options, "--table", "--versions", "torch 2.13"]) == 0
    table = capsys.readouterr().out
    rows = table.splitlines()
    assert (
        all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows) and "| versions | torch 2.13, fp8-parity" in table
    )
    assert rows[2].startswith("| verdict | pass: parity") and rows[3].startswith("| tail gap [90% interval] | ")
    command = re.search(r"`(fp8parity .*)`", table)
    assert command is not None
    assert main([*shlex.split(command[1])[1:], "--table", "--versions", "torch 2.13"]) == 0
    assert capsys.readouterr().out == table


def test_reports_are_written(folder, capsys):
    files = [word for end in ("md", "html", "json") for word in ("--report", f"out.{end}")]
    shutil.move("gap.log", "<b>|x.log")
    assert main(["verdict", "bf16", "<b>|x.log", *files]) == 1
    verdict = json.loads(Path("out.json").read_text())
    assert (verdict["status"], len(verdict["curve"])) == ("fail", 400)
    text, page = (Path(f"out.{end}").read_text() for end in ("md", "html"))
    assert text.startswith("# FP8 parity of imported runs\n\n**Refuse: fail, ")
    assert "## To paste into a pull request" in text and "&lt;b>\\|x.log against bf16 |" in text
    assert "<b>" not in page and "Refuse: fail" in page and page.count('class="plot"') == 1


def test_missing_tensorboard_is_named(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert main(["verdict", "bf16", "fp8"]) == 2
    assert "pip install 'fp8-parity[runs]'" in capsys.readouterr().err
