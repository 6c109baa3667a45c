"""The command benchmarks/endurance.py: a short run of it loses nothing, and planted faults of the library are counted as losses."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import endurance
import pytest
from enduring.project import remove_templates, template
from enduring.trial import HEADS, Outcome, Result, Trial
from enduring.writers import RECORD, WRITERS
from fp8parity.judging import completeness
from fp8parity.records import atomic, locks, storage
from fp8parity.records.schema import AnyRecord

pytestmark = pytest.mark.slow
CHEAP = ("kill", "fill", "tamper", "race")
"""The families that start no pytest."""


@pytest.fixture(autouse=True, scope="module")
def removed() -> Iterator[None]:
    yield
    remove_templates()


@pytest.fixture(autouse=True)
def project() -> None:
    """The project of the trials, made by the sound library, before a test plants a fault. The command removes it when it ends, so a test
    that ran before may have done so."""
    template(True)


def made(family: str, what: str, count: int) -> list[Trial]:
    """``count`` trials of one kind. How long a writer takes without a disturbance is measured anew."""
    kinds, _ = endurance.FAMILIES[family]
    for writer in WRITERS.values():
        vars(writer).pop("undisturbed", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(endurance.FAMILIES, family, ({what: kinds[what]}, count))
        return endurance.trials([family], 1, 1)


def outcomes(found: Sequence[Trial]) -> set[Outcome]:
    return {t.result.outcome for t in found}


def test_a_short_run_loses_nothing(tmp_path, capsys):
    page = tmp_path / "endurance.md"
    families = [part for family in CHEAP for part in ("--family", family)]
    assert endurance.main([*families, "--share", "0.04", "--write", str(page)]) == 0, capsys.readouterr().out
    text = page.read_text()
    counts = dict(zip(HEADS[2:], map(int, re.findall(r"\d+", text.split("| all |")[1].split("\n")[0])), strict=True))
    assert counts["trials"] >= 20
    assert counts["lost"] == counts["tracebacks"] == 0
    assert sum(v for k, v in counts.items() if k != "trials") == counts["trials"]
    assert "python benchmarks/endurance.py --family kill" in text


def torn(path: Path, content: str | bytes, *, new: bool = False) -> Path:
    """A writer that is not atomic: it writes the file at its place, in two operations. Between them the file is half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else content.encode()
    half = len(data) // 2
    try:
        for mode, part in (("wb", data[:half]), ("ab", data[half:])):
            with path.open(mode, buffering=0) as file:
                file.write(part)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error
    return path


@pytest.mark.parametrize(("family", "trials"), [("kill", 24), ("fill", 6)], ids=["kill", "fill"])
def test_a_writer_that_is_not_atomic_is_counted(monkeypatch, family, trials):
    """Planted: the file is opened at its place, and half a file stays there. A kill must come between the two halves, so it needs more
    trials than a full disk."""
    assert outcomes(made(family, "record", 6)) <= {Outcome.WHOLE, Outcome.REFUSED}
    monkeypatch.setattr(atomic, "write", torn)
    lost = [t.result for t in made(family, "record", trials) if t.result.outcome == Outcome.LOST]
    assert Result(Outcome.LOST, f"{RECORD} is torn") in lost


def test_a_judge_that_believes_file_names_is_counted(monkeypatch):
    """Planted: the set is whole if its files have the right names. A record lies under the name of another one."""
    assert outcomes(made("tamper", "record under the name of another", 4)) == {Outcome.REFUSED}
    believed: list[str] = []
    checked = storage.checked

    def noted(text, where):
        believed.append(where.name)
        return checked(text, where)

    def missing(manifests, records):
        return [name for m in manifests for s in m.selected for name in s.records if name not in believed]

    def name_of(record: AnyRecord) -> str:
        return believed[-1]

    monkeypatch.setattr(storage, "checked", noted)
    monkeypatch.setattr(storage, "name_of", name_of)
    monkeypatch.setattr(completeness, "missing", missing)
    assert Result(Outcome.LOST, "green") in [t.result for t in made("tamper", "record under the name of another", 4)]


def test_a_judge_without_a_manifest_check_is_counted(monkeypatch):
    """Planted: what was selected and is not on record is not missed."""
    assert outcomes(made("tamper", "cell is deleted", 3)) == {Outcome.RED}
    monkeypatch.setattr(completeness, "missing", lambda manifests, records: [])
    assert Result(Outcome.LOST, "green") in [t.result for t in made("tamper", "cell is deleted", 3)]


def met(monkeypatch: pytest.MonkeyPatch, what: str) -> set[Outcome]:
    """The outcome of one trial in which no process writes before another one is about to write. A writer replaces what it finds."""
    write, arrived, parent = atomic.write, multiprocessing.Value("i", 0), os.getpid()
    waited: list[Path] = []

    def together(path: Path, content: str | bytes, *, new: bool = False) -> Path:
        if os.getpid() != parent and not waited:
            waited.append(path)
            with arrived.get_lock():
                arrived.value += 1
            while arrived.value < 2:
                time.sleep(0.01)
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write", together)
        return outcomes(made("race", what, 1))


def test_updates_without_a_lock_and_merges_that_replace_are_counted(monkeypatch):
    """Planted: nothing holds the golden folder, and the second merge replaces the first one."""
    monkeypatch.setattr(
        locks, "golden", lambda _: nullcontext()
    )  # without flock a writer takes the other one's new file for a leftover
    assert met(monkeypatch, "bounds --write of several recipes") == {Outcome.LOST}
    assert met(monkeypatch, "merges into one .zip file") == {Outcome.LOST}


def test_files_of_two_writers_that_do_not_belong_together_are_counted(monkeypatch):
    """Planted: the list of sources is not written, so the table of numbers names a source that nobody knows."""
    write = atomic.write

    def without_sources(path: Path, content: str | bytes, *, new: bool = False) -> Path:
        return path if path.name == "sources.csv" else write(path, content, new=new)

    monkeypatch.setattr(atomic, "write", without_sources)
    [trial] = made("race", "bounds --write of several recipes", 1)
    assert trial.result.outcome == Outcome.LOST
    assert re.search(r"shared\.csv:\d+: source '\w+' is not in sources\.csv", trial.result.note)


def test_a_crash_is_counted(monkeypatch, capsys):
    """Planted: reading a manifest fails with an error that the command does not expect."""

    def fails(*_: object) -> object:
        raise KeyError("gone")

    assert endurance.main(["--family", "race", "--share", "0.02"]) == 0
    capsys.readouterr()

    def crashed(chance, scratch):
        template(True)
        monkeypatch.setattr(endurance.tampering.manifest, "load", fails)
        return endurance.tampering.KINDS["resealed: a time"](chance, scratch)

    monkeypatch.setitem(endurance.FAMILIES, "tamper", ({"crash": crashed}, 1))
    assert endurance.main(["--family", "tamper"]) == 1
    assert "| tamper | crash | 1 | 0 | 0 | 0 | 0 | 0 | 1 |" in capsys.readouterr().out
