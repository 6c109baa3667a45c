"""Shell completion: a shell asks with argcomplete's variables, and gets the names on file descriptor 8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fp8parity.cli import main

ROOT = Path(__file__).parents[1]
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
    [
        ("fp8parity comp", ["compare"]),
        ("fp8parity power --model m", ["micro", "mini"]),
        ("fp8parity predict llama3-4", ["llama3-405b"]),
        ("fp8parity gemm mi", []),
        ("fp8parity run conv", ["convergence"]),
        ("fp8parity run --parity-resu", ["--parity-resume"]),
        ("fp8parity run --parity-execution na", ["native"]),
        ("fp8parity run --parity-recipe ao-mx", ["ao-mxfp8"]),
    ],
)
def test_names_are_completed(line, names):
    assert completed(line) == names


def test_without_a_shell_that_asks_nothing_changes(capsys, monkeypatch):
    monkeypatch.delenv("_ARGCOMPLETE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("fp8-parity ")
