"""Which file of a folder is its run, and that several runs are refused: the order of a file system must not choose one."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from curves import curve
from fp8parity import runs
from fp8parity.cli import main
from log_files import automodel, deepspeed


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["old", "new"], "new/training.jsonl, old/training.jsonl"),
        ([f"run{i}" for i in range(8)], ", ".join(f"run{i}/training.jsonl" for i in range(6)) + " and 2 more"),
    ],
    ids=["two", "eight"],
)
def test_several_runs_of_a_folder_are_refused_and_named(names, says, tmp_path, capsys):
    for chaos, name in enumerate(names):
        automodel(tmp_path / "folder" / name, curve(steps=30, chaos=chaos))
    message = f"{tmp_path / 'folder'}: it holds several runs ({says}); name one of them"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        runs.read(tmp_path / "folder")
    assert main(["verdict", str(automodel(tmp_path / "bf16", curve(steps=30))), str(tmp_path / "folder")]) == 2
    assert capsys.readouterr().err == f"fp8parity: {message}\n"


def test_the_only_run_of_a_folder_is_read(tmp_path: Path):
    automodel(tmp_path / "new", curve(steps=30))
    assert len(runs.read(tmp_path).points) == 30


def test_the_run_that_lies_in_the_folder_itself_counts(tmp_path):
    automodel(tmp_path, curve(steps=30))
    automodel(tmp_path / "old", curve(steps=20))
    assert len(runs.read(tmp_path).points) == 30


def test_two_runs_of_deepspeed_are_refused(tmp_path):
    """A run that was resumed in another folder has other steps, and is one run."""
    for name, first in (("a", 1), ("b", 1), ("c", 21)):
        deepspeed(tmp_path / name, replace(curve(steps=20), first=first))
    for two in ("ab", "ac"):
        for name in two:
            shutil.copytree(tmp_path / name, tmp_path / two / name)
    with pytest.raises(ValueError, match=r"several runs, such as a/run and b/run; name one of them$"):
        runs.read(tmp_path / "ab")
    assert len(runs.read(tmp_path / "ac").points) == 40
