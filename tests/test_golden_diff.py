"""Changes of a golden folder as signed lines, for each kind of file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemm_records
import pytest
import timings
import trajectories
from fp8parity.cli import main
from fp8parity.judging.references import diff, pooling
from fp8parity.judging.references.changes import changes
from fp8parity.judging.references.loss import Golden, from_runs
from fp8parity.records.schema import Measurement
from fp8parity.records.storage import name_of, write_json
from paired import golden_of, runner

POLICY = '[[loss]]\nmargin = {margin}\nwhy = "{why}"\n'
HEAD = "check,metric,where,model,recipe,execution,value,source\n"
NUMBER = "gemm,fprop sqnr,gaussian,tiny,te-current,native,{},{}\n"
SOURCES = "source,records,device,packages,sha256\na1,set.zip,{},torch 2,a1b2\n"
Write = Callable[..., list[str]]


def commit(folder: Path) -> None:
    for command in ("add -A", "-c user.name=t -c user.email=t@t commit -qm x --allow-empty"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A committed folder with a policy."""
    (folder := tmp_path / "golden").mkdir()
    (folder / "policy.toml").write_text(POLICY.format(margin=0.005, why="the first reason"))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return folder


@pytest.fixture
def write(golden: Path) -> Write:
    """Write a file in two versions, commit the first (None: no file), and return what changed."""

    def of(name: str, old: str | None, new: str | None) -> list[str]:
        path = golden / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for content in (old, new):
            path.write_text(content) if content is not None else path.unlink(missing_ok=True)
            if content is old:
                commit(golden.parent)
        return diff.diff(golden, "HEAD")

    return of


def rows(table: str, *recipes: str) -> str:
    return "".join(
        f"[[{table}]]\n" + (f'recipe = "{r}"\n' if r else "") + f'band = 1\nwhy = "of {r}"\n' for r in recipes
    )


RULE = '[[rule]]\ncheck = "gemm"\nnumber = [{{ metric = "a", low = 1, high = {} }}, {{ metric = "b", low = 1, high = {} }}]\n'
CASES = [
    ("README.md", None, "words", []),
    ("numerics/shared.csv", HEAD, None, ["deleted"]),
    (
        "numerics/shared.csv",
        HEAD + NUMBER.format(28.5, "a1") + NUMBER.format(1, "a1").replace("gaussian", "x"),
        HEAD + NUMBER.format(28.0, "b2") + NUMBER.format(1, "a1").replace("gaussian", "y"),
        [
            "- gemm, fprop sqnr, x, tiny, te-current, native",
            "gemm, fprop sqnr, gaussian, tiny, te-current, native: value 28.5 -> 28.0 (-0.5); source a1 -> b2",
            "+ gemm, fprop sqnr, y, tiny, te-current, native: value 1.0, source a1",
        ],
    ),
    ("policy.toml", rows("loss", "a"), "# a comment\n" + rows("loss", "a"), ["only its layout changed"]),
    ("policy.toml", rows("speed", *"abc"), rows("speed", *"ac"), ["- [[speed]] recipe b"]),
    (
        "policy.toml",
        rows("loss", "a"),
        rows("loss", "a").replace("band = 1", "band = 2").replace("of a", "new"),
        ["[[loss]] recipe a: band 1 -> 2 (+1); why changed (new)"],
    ),
    ("policy.toml", RULE.format(2, 3), RULE.format(2, 4), ["[[rule]] check gemm metric b: high 3 -> 4 (+1)"]),
    (
        "policy.toml",
        rows("band", *"abcd"),
        rows("band", *"dabc"),
        ["[[band]]: the order of rows changed, first [[band]] recipe d; later rows win"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "lines"), CASES)
def test_changed_file_gives_signed_lines(write: Write, name, old, new, lines):
    assert write(name, old, new) == [f"golden/{name}: {line}" for line in lines]


def test_unchanged_folder_says_so(golden, capsys):
    assert main(["golden", "diff", "HEAD", "--golden-dir", str(golden)]) == 0
    assert capsys.readouterr().out == f"{golden} is as in HEAD\n"


def test_loss_golden_gives_a_line_for_each_part(golden, trajectory):
    def store(gap=0.0, snr=44.0, seeds=2):
        runs = [trajectory(seed=s, gap=gap if s == 0 else 0.0) for s in range(seeds)]
        made = from_runs(runs, [Measurement(metric="total sqnr", where="initial", value=snr)])
        write_json(golden / made.path, made)

    store()
    commit(golden)
    store(gap=0.01, snr=43.5, seeds=3)
    zero, new, gradient = diff.diff(golden, "HEAD")
    assert zero.startswith("golden/loss/nano-topics.json: seed 0: loss 12 of 12 values, most at 0: ")
    assert "tail loss" in zero and "(+" in zero
    assert gradient.endswith(": metric total sqnr, where initial: value 44.0 -> 43.5 (-0.5)")
    assert ": + seed 2: " in new
    store(seeds=1)
    assert any(line.endswith(": - seed 1") for line in diff.diff(golden, "HEAD"))


def leaves(value: object, place: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The places of all numbers and texts of a golden, of each long list the last alone."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [place]
    return [leaf for key, item in list(items)[-4:] for leaf in leaves(item, (*place, key))]


@pytest.mark.parametrize("kind", ["loss", "speed", "gemm"])
def test_no_field_of_a_golden_can_change_silently(kind):
    golden = {
        "loss": lambda: golden_of(runner(trajectories.made)),
        "speed": lambda: pooling.updated(None, [timings.made()]),
        "gemm": lambda: pooling.updated(None, [gemm_records.made()]),
    }[kind]()
    assert isinstance(golden, Golden) is (kind == "loss")
    old = golden.model_dump(mode="json")
    silent = []
    for *way, last in leaves(old):
        new = golden.model_dump(mode="json")
        holder: Any = new
        for key in way:
            holder = holder[key]
        holder[last] = "changed"
        if not changes(old, new):
            silent.append((*way, last))
    assert silent == [] and changes(old, old) == []


def test_verdicts_that_change_are_named(golden, capsys, trajectory, tmp_path):
    """A wider margin turns a failing recipe; BF16 stays as it is."""
    made = from_runs([trajectory(seed=s) for s in range(3)], [])
    write_json(golden / made.path, made)
    commit(golden)
    (golden / "policy.toml").write_text(POLICY.format(margin=0.02, why="the second reason"))
    for s, gap in enumerate((0.0101, 0.0104, 0.0097)):
        for r in (trajectory(seed=s), trajectory("te-current", s, gap)):
            write_json(tmp_path / "records" / name_of(r), r)
    assert main(["golden", "diff", "HEAD", "--golden-dir", str(golden), "--records", str(tmp_path / "records")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2].startswith("1 of the verdicts on 6 records")
    assert out[-1].startswith("  te-current-nano-emulated loss parity: fail -> pass")


def test_unknown_revision_and_damage_are_2(golden, capsys):
    assert main(["golden", "diff", "nowhere", "--golden-dir", str(golden)]) == 2
    assert "nowhere" in capsys.readouterr().err
    (golden / "loss").mkdir()
    (golden / "loss/a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"golden/loss/a.json: no checksum"):
        diff.diff(golden, "HEAD")
    (golden / "loss/a.json").write_bytes(b"x\xff")
    commit(golden)
    (golden / "loss/a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"HEAD:golden/loss/a.json: not UTF-8 text at byte 1"):
        diff.diff(golden, "HEAD")
