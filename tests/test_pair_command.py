"""The commands import and verdict: exit status, output, reports, and nothing half-written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from curves import HF, curve
from fp8parity.cli import main
from log_files import automodel, megatron, megatron_tensorboard

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Runs of one seed: BF16, FP8, FP8 with a gap of 1%, and FP8 of another seed. The commands run beside them, without a golden folder."""
    monkeypatch.chdir(tmp_path)
    automodel(tmp_path / "bf16", curve())
    megatron_tensorboard(tmp_path / "fp8", curve(chaos=1))
    megatron(tmp_path / "gap", curve(chaos=1).with_gap(0.01))
    automodel(tmp_path / "other", curve(seed=9))
    return tmp_path


@pytest.mark.parametrize(
    ("fp8", "code", "said"), [("gap.log", 1, "Refuse: fail"), ("other", 2, "Cannot say: inconclusive")]
)
def test_exit_status(fp8, code, said, folder, capsys):
    megatron(folder / "bf16", curve())
    assert main(["verdict", "bf16.log" if fp8.endswith(".log") else "bf16", fp8]) == code
    out = capsys.readouterr().out
    assert out.startswith(said)
    assert "pytest suites/numerics suites/convergence --model micro --recipe te-current" in out


def test_the_recipe_of_the_printed_command_is_one_of_the_catalogue(folder, capsys):
    """Its command would stop at a name that does not exist."""
    assert main(["verdict", "bf16", "fp8", "--recipe", "te-mxfp8"]) == 0
    assert "--model micro --recipe te-mxfp8" in capsys.readouterr().out
    assert main(["verdict", "bf16", "fp8", "--recipe", "te-curent", "--report", "out.md"]) == 2
    assert "unknown recipe 'te-curent': did you mean te-current" in capsys.readouterr().err
    assert not Path("out.md").exists()


def test_runs_of_two_frameworks(folder, capsys):
    """AutoModel counts tokens in a step, Megatron samples: they cannot be compared, so they do not speak against a pair."""
    assert main(["verdict", "bf16", "fp8"]) == 0
    assert "tokens or samples a step not comparable" in capsys.readouterr().out


def test_imported_runs_give_the_same_verdict(folder, capsys):
    assert main(["import", "bf16", "fp8"]) == 0
    found = sorted(Path("imported").glob("*.json"))
    assert len(found) == 2
    assert "400 losses in full, steps 1 to 400 every 1" in capsys.readouterr().out
    assert main(["verdict", "bf16", "fp8"]) == 0
    raw = capsys.readouterr().out
    assert main(["verdict", *map(str, found)]) == 0
    assert capsys.readouterr().out == raw


def test_a_bad_run_leaves_nothing_half_written(folder, capsys):
    Path("notes.txt").write_text("hello\n")
    assert main(["import", "bf16", "notes.txt"]) == 2
    assert not Path("imported").exists()
    error = capsys.readouterr().err
    assert error.startswith("fp8parity: notes.txt: unknown format") and error.count("\n") == 1


@pytest.mark.parametrize("command", [("judge", "imported"), ("merge", "all.zip", "imported")], ids=" ".join)
def test_an_imported_run_is_no_record_of_a_gate(folder, capsys, command):
    assert main(["import", "bf16"]) == 0
    assert main([*command]) == 2
    assert "it is a run of fp8parity import, which fp8parity verdict reads" in capsys.readouterr().err


def test_an_edited_import_is_refused(folder, capsys):
    assert main(["import", "bf16"]) == 0
    [path] = Path("imported").glob("*.json")
    path.write_text(path.read_text().replace('"steps"', '"tokens"', 1))
    assert main(["verdict", str(path), "fp8"]) == 2
    assert "edited or damaged" in capsys.readouterr().err


def test_the_table_of_a_pull_request(folder, capsys):
    assert main(["verdict", "bf16", "fp8", "--table", "--versions", "torch 2.13"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[1] == "|---|---|"
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows), "two columns each"
    assert rows[2] == "| verdict | **pass**: consistent with parity, on one pair |"
    assert rows[3].startswith("| tail gap [90% interval] | -0.004% [-0.10")
    assert rows[-2].startswith("| versions | torch 2.13, fp8-parity ")


def test_its_command_gives_the_same_table_again(folder, capsys):
    automodel(folder / "again", curve(chaos=2))
    assert (
        main(
            [
                "verdict",
                "bf16",
                "fp8",
                "--margin",
                "0.3%",
                "--spread",
                "0.03%",
                "--until",
                "390",
                "--repeat",
                "again",
                "--table",
            ]
        )
        == 0
    )
    table = capsys.readouterr().out
    command = re.search(r"`(fp8parity .*)`", table)
    assert command is not None
    assert main([*shlex.split(command[1])[1:], "--table"]) == 0
    assert capsys.readouterr().out == table


def test_its_command_names_a_recipe_that_is_not_the_default(folder, capsys):
    """Otherwise the repeated report names the command of another recipe's gate."""
    assert main(["verdict", "bf16", "fp8", "--recipe", "te-block", "--table"]) == 0
    assert "fp8parity verdict bf16 fp8 --margin=0.0025 --tail=0.2 --recipe=te-block`" in capsys.readouterr().out


def test_reports(folder, capsys):
    assert (
        main(["verdict", "bf16", "gap.log", *(w for end in ("md", "html", "json") for w in ("--report", f"out.{end}"))])
        == 1
    )
    verdict = json.loads(Path("out.json").read_text())
    assert (verdict["status"], len(verdict["curve"])) == ("fail", 400)
    text = Path("out.md").read_text()
    assert text.startswith("# FP8 parity of imported runs\n\n**Refuse: fail, ") and "| verdict | **fail**" in text
    page = Path("out.html").read_text()
    assert "Refuse: fail" in page and page.count("<polyline") == 1 and "http" not in re.sub(r"http-equiv", "", page)
    assert main(["verdict", "bf16", "bf16", "--report", "same.html"]) == 1, "a curve of zeros can be drawn, too"
    assert main(["verdict", "bf16", "gap.log", "--report", "out.pdf"]) == 2
    assert "no renderer for '.pdf'" in capsys.readouterr().err


def test_a_name_with_markup_stays_text(folder):
    Path("fp8").rename("<b>|x")
    assert main(["verdict", "bf16", "<b>|x", "--report", "out.md", "--report", "out.html"]) == 0
    assert "<b>" not in Path("out.html").read_text()
    assert "&lt;b>\\|x against" in Path("out.md").read_text()


def test_more_seeds(folder, capsys):
    automodel(folder / "bf16-1", curve(1))
    automodel(folder / "fp8-1", curve(1, chaos=1))
    assert main(["verdict", "bf16", "fp8", "--seed", "bf16-1", "fp8-1"]) == 0
    assert "parity with BF16, on 2 pairs" in capsys.readouterr().out


def test_a_repeat_may_equal_bf16_to_the_bit(folder, capsys):
    """On a deterministic stack it does."""
    shutil.copytree(folder / "bf16", folder / "copy")
    assert main(["verdict", "bf16", "fp8", "--repeat", "copy"]) == 0
    assert "parity with BF16, on one pair and repeats of BF16" in capsys.readouterr().out


def test_a_users_own_loss(folder, capsys):
    for chaos in (0, 1):
        lines = "".join(f"{s},{x!r}\n" for s, x in enumerate(curve(chaos=chaos).loss))
        Path(f"own-{chaos}.csv").write_text(f"step,my\n{lines}")
    assert main(["verdict", "own-0.csv", "own-1.csv"]) == 2
    assert "--loss KEY" in capsys.readouterr().err
    assert main(["verdict", "own-0.csv", "own-1.csv", "--loss", "my"]) == 0


def test_without_tensorboard_the_message_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    assert main(["verdict", "bf16", "fp8"]) == 2
    assert "pip install 'fp8-parity[runs]'" in capsys.readouterr().err


def test_it_needs_no_torch(folder):
    code = f"import sys; from fp8parity.cli import main; c = main(['verdict', {str(HF / 'fp32')!r}, {str(HF / 'bf16')!r}]); "
    code += "assert 'torch' not in sys.modules; sys.exit(c)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "fixtures")}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
