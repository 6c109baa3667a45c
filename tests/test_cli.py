"""The command line: exit statuses and key facts of commands, completion, and readers that stop."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fp8parity import cli
from fp8parity.cli import main
from fp8parity.cli.common import Exit
from fp8parity.cli.recipes import MAXIMA, SCALES
from fp8parity.gate.options import OPTIONS
from fp8parity.judging import references
from fp8parity.numerics.formats import FORMATS
from fp8parity.numerics.scaling import SCALE_RULES
from fp8parity.recipes import RECIPES
from fp8parity.recipes.recipe import OLDEST
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import name_of, write_json
from narrowed import some
from processes import FIXTURES, ROOT
from sessions import GOLDEN, stored


@pytest.fixture(autouse=True)
def shipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the shipped goldens once, and not for each command."""
    real, (goldens, _) = references.load, stored()
    monkeypatch.setattr(references, "load", lambda folder: goldens if folder == GOLDEN else real(folder))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_command_has_help_and_an_example_that_parses(name, capsys):
    command = cli.COMMANDS[name]
    program, first, *given = shlex.split(command.example)
    assert (program, first) == ("fp8parity", name)
    if name != "run":  # pytest parses its options (tests/test_docs.py)
        cli.parser().parse_args([name, *given])
        with pytest.raises(SystemExit) as ended:
            cli.parser().parse_args([name, "--help"])
        assert ended.value.code == 0 and command.example in capsys.readouterr().out


def test_command_of_ours_imports_no_added_one(capsys, monkeypatch):
    """A package that cannot be imported must not stop a gate."""
    monkeypatch.setattr(cli, "added", lambda: pytest.fail("imported"))
    assert main(["judge", f"{GOLDEN}/records/h100-five.zip", "--golden-dir", str(GOLDEN)]) in (Exit.OK, Exit.RED)
    assert capsys.readouterr().out


def test_commands_of_a_lab_that_is_not_installed_name_its_package(capsys, monkeypatch):
    monkeypatch.setattr(cli, "added", dict)
    assert main([]) == Exit.UNDECIDED
    lines = capsys.readouterr().out.splitlines()
    assert ", ".join(cli.LAB) in " ".join(map(str.strip, lines)) and max(map(len, lines)) <= 80
    for name in cli.LAB:
        assert main([name, "x"]) == Exit.UNDECIDED
        assert f"{name} is a command of the lab: pip install fp8-parity-lab" in capsys.readouterr().err


def test_help_of_run_lists_our_options_only(capsys):
    assert main(["run", "numerics", "--help"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  -")}
    assert listed == {o.short_name if o.short else o.flag for o in OPTIONS}


def test_recipes_describes_each_recipe(capsys):
    """A variant without rules differs from its base in operands or options, and says so."""
    assert main(["recipes"]) == Exit.OK
    listed, texts = capsys.readouterr().out, {}
    for recipe in RECIPES.values():
        assert main(["recipes", recipe.name]) == Exit.OK
        texts[recipe.name] = text = " ".join(capsys.readouterr().out.split())
        assert recipe.name in listed and recipe.source in text and "rule of your own" not in text
        assert all(gemm in text for gemm in ("fprop", "dgrad", "wgrad"))
        native = recipe.native
        assert native is None or f"{native.package} {native.since or OLDEST[native.package]} or later" in text
    bodies = [re.sub(r"recipe .*? fprop|source .*", "", text) for text in texts.values()]
    assert len(set(bodies)) == len(bodies)
    assert main(["recipes", "te-curent"]) == Exit.UNDECIDED


def test_scale_rules_are_described_and_versions_are_those_of_the_wheel():
    assert set(SCALES) == {*SCALE_RULES, "nvfp4"}
    assert {name: FORMATS[name].max for name in MAXIMA} == MAXIMA
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"torchao>={OLDEST["torchao"]}' in project
    assert f'"transformer-engine[pytorch]>={OLDEST["transformer_engine"]}' in project


def measured(trajectory, value: float) -> Measurements:
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED)
    row = Measurement(metric="fprop sqnr", where="gaussian", value=value)
    where = trajectory().provenance
    return Measurements(partial=True, cell=cell, check="gemm", values=[row], provenance=where, session="s")


@pytest.fixture
def judged(trajectory, tmp_path) -> Callable[..., int]:
    """Judge a number of te-current. Its record lacks the other numbers of its check."""

    def judge(value: float, *words: str, golden: Path = GOLDEN) -> int:
        record = measured(trajectory, value)
        write_json(tmp_path / "set" / name_of(record), record)
        return main(["judge", str(tmp_path / "set"), "--golden-dir", str(golden), *words])

    return judge


@pytest.mark.parametrize(("value", "code"), [(28.5, Exit.OK), (24.0, Exit.RED), (55.6, Exit.RED)])
def test_judge_gives_its_exit_status(judged, tmp_path, capsys, value, code):
    report = tmp_path / "out" / "report.md"
    assert judged(value, "--report", str(report), "--report", str(tmp_path / "report.json")) == code
    assert json.loads((tmp_path / "report.json").read_text())["sentence"] in report.read_text()
    assert ("**Accept: " in report.read_text(), "**Refuse: " in report.read_text()) == (not code, bool(code))
    assert "te-current" in capsys.readouterr().out


@pytest.mark.parametrize("with_other", [False, True])
def test_machine_without_a_verdict_is_refused(judged, tmp_path, capsys, with_other):
    """Steps with other lengths are only shown. Green checks of another machine do not change that."""
    lengths = f"{GOLDEN}/records/h200-lengths.zip"
    if with_other:
        judged(28.5)
        capsys.readouterr()
    code = main(["judge", lengths, *[str(tmp_path / "set")] * with_other, "--golden-dir", str(GOLDEN)])
    out = capsys.readouterr().out
    assert code == Exit.RED and "Accept: " not in out and "Refuse: nothing was checked." in out
    assert out.count("green, but NVIDIA H200, judged with them, is not accepted.") == with_other


def test_judge_says_that_the_shipped_goldens_count(judged, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    for folder, count in ((GOLDEN, 0), (tmp_path / "mine", 1)):
        judged(28.5, golden=folder)
        assert capsys.readouterr().out.count(f"goldens: those in {folder} and the shipped ones\n") == count


def test_unreadable_input_is_one_line(tmp_path, capsys):
    assert main(["judge", str(tmp_path), "--golden-dir", str(GOLDEN)]) == Exit.UNDECIDED
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fp8parity: {tmp_path} holds no records; give a folder that --parity-records wrote")


def test_judge_against_a_folder_without_goldens_is_refused(judged, tmp_path, capsys):
    """Otherwise the shipped goldens would count as those of the folder, and no verdict would differ."""
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "holds no goldens; give a folder"), ("nowhere", "no such folder")):
        assert judged(28.5, "--against", str(tmp_path / name)) == Exit.UNDECIDED
        out, err = capsys.readouterr()
        assert (out, err.startswith(f"fp8parity: --against {tmp_path / name}: {words}")) == ("", True)


def test_crash_is_no_verdict(monkeypatch, capsys):
    """Python's own status of a crash is that of a regression."""

    def crash(_: object) -> int:
        raise KeyError("planted")

    monkeypatch.setitem(cli.COMMANDS, "recipes", cli.COMMANDS["recipes"]._replace(run=crash))
    assert main(["recipes"]) == Exit.FAULT
    assert "KeyError: 'planted'" in capsys.readouterr().err


CODE = "import os, sys; os.dup2(1, 8); from fp8parity.cli import main; main(); assert 'torch' not in sys.modules"


def completed(line: str) -> list[str]:
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_LINE": line}
    variables = {**os.environ, **asked, "COMP_POINT": str(len(line)), "PYTHONPATH": str(ROOT / "fixtures")}
    done = subprocess.run([sys.executable, "-c", CODE], env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [name.strip() for name in done.stdout.split("\n") if name.strip()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "names"),
    [("fp8parity gemm llama3-4", ["llama3-405b"]), ("fp8parity run --parity-execution na", ["native"])],
)
def test_names_are_completed(line, names):
    assert completed(line) == names


@pytest.mark.parametrize(("value", "status"), [(28.5, Exit.UNDECIDED), (24.0, Exit.RED)])
def test_unwritten_report_is_the_last_thing_that_judge_says(judged, tmp_path, capsys, value, status):
    (tmp_path / "file").touch()
    report = str(tmp_path / "file" / "report.html")
    assert judged(value, "--report", report) == status
    said = capsys.readouterr()
    assert said.out.endswith(f"Incomplete: --report {report} could not be written\n") and report in said.err


@pytest.mark.slow
def test_a_reader_that_stops_is_no_error_and_loses_no_report(tmp_path):
    """`fp8parity judge RECORDS --report parity.md | head -1`. This process is started, not forked: Python writes the rest at its end."""
    path = tmp_path / "out.md"
    records = "golden/records/upgrades/xeon-torchao-0.17.0.zip"
    command = [sys.executable, "-m", "fp8parity", "judge", records, "--report", str(path)]
    environment, pipe = os.environ | {"PYTHONPATH": FIXTURES}, subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe) as process:
        some(process.stdout).close()
        assert some(process.stderr).read() == b""
        assert process.wait(60) == 2
    assert path.stat().st_size > 300
