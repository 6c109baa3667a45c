"""Writers that are killed, interrupted or alone on a full disk: the old file or the new one is there, and no part stays."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import reports
from fp8parity import report as formats
from fp8parity.judging import measured_numbers
from fp8parity.judging.measured_numbers import MeasuredNumbers, Number, NumberKey, Source
from fp8parity.records import atomic, sets
from fp8parity.records.cell import Execution
from fp8parity.records.storage import load_records, name_of, write_json
from fp8parity.report.summary import Report
from fp8parity.training import provenance

FIXTURES = str(Path(__file__).parents[1] / "fixtures")
KILLED = """
import os, signal, sys
from pathlib import Path
from fp8parity.records import atomic, sets
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(code: str, *arguments: object) -> None:
    """Run Python code in a process that kills itself when it calls ``kill``."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED + code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": FIXTURES},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch):
    """Each test begins as a process that has not yet looked for leftovers."""
    monkeypatch.setattr(atomic, "_cleaned", set())


WRITE = "os.{} = kill\natomic.write(Path(sys.argv[1]), 'new' * 100000)"


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path, moment):
    path = atomic.write(tmp_path / "report.html", "old")
    killed(WRITE.format(moment), path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    atomic._cleaned.clear()
    atomic.write(tmp_path / "other.md", b"other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.md", "report.html"]


def test_a_link_stays_a_link_to_the_new_content(tmp_path):
    (tmp_path / "share").mkdir()
    (tmp_path / "latest.html").symlink_to(tmp_path / "share" / "a.html")
    atomic.write(tmp_path / "latest.html", "new")
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "share" / "a.html").read_text() == "new"


def test_a_running_writer_is_left_alone(tmp_path):
    code = "import time\nos.replace = lambda *_: (print('here', flush=True), time.sleep(60))\natomic.write(Path(sys.argv[1]), 'new')"
    command = [sys.executable, "-c", KILLED + code, str(tmp_path / "a")]
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": FIXTURES}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        atomic.write(tmp_path / "b", "b")
        assert len(list(tmp_path.glob(".a.*"))) == 1
        process.kill()
    atomic._cleaned.clear()
    atomic.write(tmp_path / "c", "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]


def test_leftovers_of_older_versions_go_after_an_hour_and_other_hidden_files_stay(tmp_path):
    old, young, others = (tmp_path / name for name in (".x.json.abcd1234", ".y.json.abcd1234", ".gitignore"))
    for path in (old, young, others):
        path.write_text("")
    os.utime(old, (time.time() - 7200,) * 2)
    os.utime(others, (time.time() - 7200,) * 2)
    atomic.write(tmp_path / "a", "a")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".gitignore", ".y.json.abcd1234", "a"]


@pytest.mark.parametrize("ending", [".html", ".md", ".json"])
def test_an_interrupted_report_leaves_the_old_one(tmp_path, monkeypatch, ending):
    """Planted: Ctrl-C while the text is on its way to the disk."""
    path = tmp_path / f"out{ending}"
    made: Report = reports.report(recipes=("te-current",))
    formats.write(made, path)
    old = path.read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        formats.write(made.model_copy(update={"sentence": "another"}), path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


MERGE = """
made, count = atomic.write, 0
def write(path, content):
    global count
    count += 1
    return made(path, content) if count < 4 else kill()
atomic.write = write
sets.save(sets.load([Path(sys.argv[2])]), Path(sys.argv[1]))
"""


def test_a_killed_merge_leaves_no_part_of_a_set_and_blocks_no_other(trajectory, tmp_path):
    runs = [trajectory(recipe, seed) for recipe in ("bf16", "te-current") for seed in range(3)]
    for r in runs:
        write_json(tmp_path / "set" / name_of(r), r)
    out = tmp_path / "out" / "merged"
    out.parent.mkdir()
    killed(MERGE, out, tmp_path / "set")
    assert not out.exists()
    assert [p.name[:8] for p in out.parent.iterdir()] == [".merged."]
    atomic._cleaned.clear()
    sets.save(sets.load([tmp_path / "set"]), out)
    assert load_records(out) == load_records(tmp_path / "set")
    assert [p.name for p in out.parent.iterdir()] == ["merged"]


def test_a_merge_does_not_replace_a_zip_that_another_merge_has_written_meanwhile(trajectory, tmp_path, monkeypatch):
    """Planted: the other merge ends after this one has looked for the file."""
    out, sync = tmp_path / "out.zip", os.fsync

    def later(handle: int) -> None:
        sync(handle)
        out.write_bytes(b"the other one")

    monkeypatch.setattr(os, "fsync", later)
    with pytest.raises(OSError, match="cannot write .*out.zip: File exists"):
        sets.save([trajectory()], out)
    assert out.read_bytes() == b"the other one"
    assert [p.name for p in tmp_path.iterdir()] == ["out.zip"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_file_on_a_file_system_without_hard_links(tmp_path, monkeypatch, exists):
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "a"
    if exists:
        path.write_text("old")
        with pytest.raises(OSError, match="cannot write .*a: File exists"):
            atomic.write(path, "new", new=True)
    else:
        atomic.write(path, "new", new=True)
    assert path.read_text() == ("old" if exists else "new")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_merge_takes_an_empty_folder_and_no_other(trajectory, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    sets.save([trajectory()], out)
    assert load_records(out) == [trajectory()]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes is not empty; choose a new folder"):
        sets.save([trajectory()], tmp_path / "notes")
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"


def test_a_killed_update_of_the_numbers_leaves_a_readable_folder(tmp_path):
    """Planted: the new table is written, and the process is killed before the sources are."""

    def numbers(value: float, source: str) -> MeasuredNumbers:
        key = NumberKey("gemm", "m", "w", "tiny", "te-current", Execution.NATIVE)
        return MeasuredNumbers({"shared": {key: Number(value, source)}}, (Source(source, "set", "d", "p", "0"),))

    measured_numbers.write(tmp_path, numbers(1.0, "old"))
    code = "import pickle\nmade, count = os.replace, 0\n"
    code += "def replace(*names):\n    global count\n    count += 1\n    return made(*names) if count < 3 else kill()\nos.replace = replace\n"
    code += "from fp8parity.judging.measured_numbers import *\n"
    code += "key = NumberKey('gemm', 'm', 'w', 'tiny', 'te-current', Execution.NATIVE)\n"
    code += "write(Path(sys.argv[1]), MeasuredNumbers({'shared': {key: Number(2.0, 'new')}}, (Source('new', 'set', 'd', 'p', '0'),)))"
    killed(code, tmp_path)
    [table] = measured_numbers.load(tmp_path).tables.values()
    assert [n.value for n in table.values()] == [2.0]


@pytest.mark.parametrize(
    "left",
    [".tiny-topics.json.abcd1234", ".tiny-topics.json.x.fp8parity", ".lock.fp8parity", ".merged.x.fp8parity/a.json"],
)
def test_what_a_killed_writer_left_makes_no_tree_unclean(tmp_path, monkeypatch, left):
    for command in ("init -q", "-c user.name=t -c user.email=t@t commit -q --allow-empty -m x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FP8PARITY_COMMIT", raising=False)
    path = tmp_path / "golden" / "loss" / left
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert provenance.commit.__wrapped__()[1] is False
    (tmp_path / "golden" / "loss" / "tiny-topics.json").write_text("")
    assert provenance.commit.__wrapped__()[1] is True


def test_a_named_commit_hides_no_changes_of_its_own_tree(tmp_path, monkeypatch):
    """A script that exports the commit of its clone says nothing of what is changed there. Another commit is that of other code."""
    for command in ("init -q", "-c user.name=t -c user.email=t@t commit -q --allow-empty -m x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    for changed in (False, True):
        for given, wanted in {
            head: (head, changed),
            "0123abc": ("0123abc", False),
            "0123abc-dirty": ("0123abc", True),
        }.items():
            monkeypatch.setenv("FP8PARITY_COMMIT", given)
            assert provenance.commit.__wrapped__() == wanted
        (tmp_path / "changed.py").write_text("")


def test_a_merge_does_not_write_over_the_file_of_another_one(tmp_path, monkeypatch, trajectory):
    """The other one wrote it after this one had looked."""
    out, real = tmp_path / "set.zip", sets.to_json

    def meanwhile(model):
        out.write_text("the other one's")
        return real(model)

    monkeypatch.setattr(sets, "to_json", meanwhile)
    with pytest.raises(OSError, match=r"set\.zip"):
        sets.save([trajectory()], out)
    assert out.read_text() == "the other one's"
    assert os.listdir(tmp_path) == ["set.zip"]
