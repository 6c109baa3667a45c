"""Fuzzed files: whatever a file holds, a command ends with a status and at most one line of error."""

from __future__ import annotations

import copy
import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import inputs
import pytest
from fp8parity.cli import main
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inputs import COMMANDS

CASES = {"records": 60, "tables": 40, "goldens": 30}
"""The number of cases of each kind of file. Together they take about 10 s."""
BOUNDED = settings(
    derandomize=True, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
DEEP: list[Any] = []
for _ in range(600):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, -1, 0, 1, 2, 2**63, 10**400, -0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf, "", "x", "-1", "\ud800", "a/../b",
    "\x1b[2J\n::error", [], {}, [[]], [None], [1, 2, 3], [[0, -1.0]], [[0, 1.0], [1, 2.0]], [1.0] * 24, {"steps": 1}, {"a": {"b": []}},
    "9" * 5000, DEEP,
]  # fmt: skip
"""What a field is replaced by."""
WORDS = [
    "", "-1", "nan", "inf", "1e999", "9" * 5000, "[", "[[", "=", '"', "\x00", "\u2028", "é", "a = " + "[" * 2000, "a.b.c", "0x",
    "1979-13-45", ",", "[]", "{}", "true", "[1, 'a']", "99999999999", "0", "[[1]]", '"x"', '["x", "y"]', "1e-320", "1e308",
]  # fmt: skip
"""What a part of a text is replaced by."""
SETS = ("fp8parity: records: ", "fp8parity: OLD holds ", "fp8parity: NEW holds ")
"""How an error begins that is about the records of a set together."""


def paths(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a JSON document, without its root. Of a list of numbers the first two are enough."""
    keys = node.keys() if isinstance(node, dict) else range(min(2, len(node))) if isinstance(node, list) else ()
    for key in keys:
        yield (*at, key)
        yield from paths(node[key], (*at, key))


def changed(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """The document with one or two places replaced, removed, cut or repeated."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(paths(made)) or [("kind",)]))
        holder = made
        for key in way:
            holder = holder[key]
        old = holder.pop(last) if isinstance(holder, list) else holder.pop(last, None)
        kind = draw(st.sampled_from(["replace", "replace", "cut", "repeat", "remove"]))
        new = json.loads(json.dumps(draw(st.sampled_from(VALUES))))  # its own copy, which the second change may change
        if kind in ("cut", "repeat") and isinstance(old, list | str):
            new = old[:-1] if kind == "cut" else old * 2
        if kind != "remove":
            holder.insert(last, new) if isinstance(holder, list) else holder.update({last: new})
    return made


def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with one part cut out, replaced, or followed by something else."""
    start = draw(st.integers(0, len(content)))
    end = draw(st.integers(start, min(len(content), start + 40)))
    new = draw(st.one_of(st.binary(max_size=8), st.sampled_from([w.encode() for w in WORDS])))
    return content[:start] + new + (b"" if draw(st.booleans()) else content[end:])


def retyped(draw: st.DrawFn, content: bytes) -> bytes:
    """The text with the value of one line, or one field of a table, replaced."""
    lines = content.decode().splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    split = " = " if " = " in lines[at] else ","
    parts = lines[at].split(split)
    parts[draw(st.integers(0, len(parts) - 1))] = draw(
        st.sampled_from([*WORDS, "[]", "{}", "true", "[1, 'a']", "99999999999", "0", "[[1]]"])
    )
    return "\n".join([*lines[:at], split.join(parts), *lines[at + 1 :]]).encode()


@st.composite
def cases(draw: st.DrawFn, files: list[Path]) -> tuple[Path, bytes, str]:
    """A file, its new content, and a command that reads it."""
    path = draw(st.sampled_from(files))
    content = path.read_bytes() if path.exists() else zipfile.ZipFile(path.parent).read(path.name)
    if path.suffix == ".json" and draw(st.integers(0, 9)):
        content = inputs.sealed(changed(draw, json.loads(content)))
    elif path.suffix in (".toml", ".csv") and draw(st.integers(0, 4)):
        content = retyped(draw, content)
    else:
        content = damaged(draw, content)
    return path, content, draw(st.sampled_from(list(COMMANDS)))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(inputs.make(tmp_path))
    return tmp_path


def files(project: Path, kind: str) -> list[Path]:
    """The files of one kind. The first members of the .zip file stand for all of them."""
    records = sorted((project / "records").glob("*.json"))
    if kind == "records":
        return [*records, *(project / "set.zip" / p.name for p in records[:4]), project / "set.zip"]
    return sorted(
        p for p in (project / "golden").rglob("*") if p.is_file() and (p.suffix == ".json") == (kind == "goldens")
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["records", "tables", "goldens"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fuzzed_file_gives_no_traceback(project, capsys, kind):
    """Planted: damaged files. An error is one line that names the file, or the set whose records do not fit each other."""
    given_files = files(project, kind)
    seen: set[int] = set()

    @settings(BOUNDED, max_examples=CASES[kind])
    @given(cases(given_files))
    def check(case: tuple[Path, bytes, str]) -> None:
        path, content, command = case
        (project / "merged.zip").unlink(missing_ok=True)
        with inputs.replaced(path, content):
            code = main(COMMANDS[command])
        error = capsys.readouterr().err
        seen.add(code)
        assert code in (0, 1, 2)
        if error:
            assert code == 2
            assert error.startswith("fp8parity: ") and error.endswith("\n") and len(error.splitlines()) == 1, error
            assert any(name in error for name in (path.name, *SETS)), error

    check()
    assert seen == {0, 1, 2}
