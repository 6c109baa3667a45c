"""Golden files: every field is validated, and changes of a folder are signed lines."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemm_records
import pytest
import timings
import trajectories
from fp8parity.cli import main
from fp8parity.judging.references import diff, pooling, store
from fp8parity.judging.references.loss import Golden, from_runs
from fp8parity.judging.references.store import changes
from fp8parity.judging.references.timed import GemmGolden, SpeedGolden
from fp8parity.records.storage import checksum, name_of, write_json
from paired import golden_of, runner
from projects import commit
from sessions import GOLDEN


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One golden of each kind. Tests change copies."""
    folder = tmp_path_factory.mktemp("golden")
    made = golden_of(runner(trajectories.made))
    write_json(folder / made.path, made.sealed())
    pooling.store(folder, timings.made(), timings.POLICY)
    pooling.store(folder, gemm_records.made(), timings.POLICY)
    return folder


def edited(written: Path, folder: Path, kind: type[store.GoldenFile], place: str, value: object) -> Path:
    """Write ``value`` at ``place``, such as "seeds.0.loss.7", with a new checksum; None removes the last item."""
    shutil.copytree(written, folder, dirs_exist_ok=True)
    [path] = folder.glob(kind.PATTERN)
    data = json.loads(path.read_text())
    *way, last = (int(k) if k.isdigit() else k for k in place.split("."))
    holder: Any = data
    for key in way:
        holder = holder[key]
    if value is None:
        holder[last].pop()
    else:
        holder[last] = value
    path.write_text(json.dumps(data | {"checksum": checksum(data)}))
    return path


CELL = "cells.te-current native"
FAULTS: list[tuple[type[store.GoldenFile], str, object, str]] = [
    (Golden, "schema_version", 2, "Input should be 1"),
    (Golden, "model", "other", "it holds other on topics; rename it"),
    (Golden, "spec_hash", "", "key spec_hash"),
    (Golden, "schedule.steps", 159, "seeds.0 has 160 losses; the schedule has 159 steps"),
    (Golden, "seeds", [], "key seeds"),
    (Golden, "seeds.1.seed", 0, "seeds: 0 appears twice"),
    (Golden, "seeds.1.initial_weights", "w0", "initial weights: w0 appears twice"),
    (Golden, "seeds.0.loss.7", "NaN", "key seeds.0.loss.7"),
    (Golden, "seeds.0.loss", None, "seeds.0: 159 losses and 160 gradient norms"),
    (Golden, "seeds.0.validation", [], "replica1: a replica was validated at other steps than the run"),
    (Golden, "seeds.0.validation.0.0", 160, "the last validation is at step 160 of 160"),
    (Golden, "seeds.0.validation", [[159, 3.5], [100, 3.6]], "the steps of its validations do not rise"),
    (Golden, "seeds.0.replicas.1.variant", "replica1", "replicas: replica1 appears twice"),
    (Golden, "gradients", [{"metric": "a", "where": "b", "value": "NaN"}], "gradients: a @ b is nan"),
    (Golden, "noise.0.runs.0.recipe", "bf16", "bf16 is the control"),
    (Golden, "noise.0.runs.0.loss", "5000000", "key noise.0.runs.0.loss.0: Input should be less than 0.5"),
    (Golden, "noise.0.runs.0.loss", "1 x", "key noise.0.runs.0.loss: invalid literal"),
    (Golden, "noise.0.tail_sd", 0.01, "key noise.0.tail_sd: Extra inputs are not permitted"),
    (Golden, "noise.0.window", 16, "20 windows of 16 steps do not make 160 steps"),
    (SpeedGolden, "schema_version", 7, "key schema_version"),
    (SpeedGolden, "gpu", "NVIDIA Other", "it holds NVIDIA Other, base; rename it"),
    (SpeedGolden, "cells", {"te-current sideways": {}}, "cells.te-current sideways"),
    (SpeedGolden, f"{CELL}.low", 1.3, "the ratio, 1.2, is not inside its interval [1.3,"),
    (SpeedGolden, f"{CELL}.bf16_tokens_per_second", 50000.0, "the ratio is 1.2, and that of its tokens/s is 1.97"),
    (SpeedGolden, f"{CELL}.sessions", [], "sessions"),
    (GemmGolden, "model", "other", "it holds NVIDIA Made Up, GEMMs of other; rename it"),
    (
        GemmGolden,
        f"{CELL}.sums.kernel",
        [2.0, 2.1, 2.2],
        "the ratio of kernel, 2, is not inside its interval [2.1, 2.2]",
    ),
    (GemmGolden, f"{CELL}.gemms", {}, "gemms"),
]


@pytest.mark.parametrize(
    ("kind", "place", "value", "words"), FAULTS, ids=[f"{k.__name__} {p} {str(v)[:20]}" for k, p, v, _ in FAULTS]
)
def test_wrong_field_with_a_new_checksum_is_named(written, tmp_path, kind, place, value, words):
    path = edited(written, tmp_path, kind, place, value)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked in parts
        store.load(tmp_path, kind)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and words in text and "\n" not in text, text


@pytest.mark.parametrize("kind", [Golden, SpeedGolden, GemmGolden])
def test_golden_comes_back_and_damage_is_named(written, tmp_path, kind):
    [golden] = store.load(written, kind).values()
    assert store.write(tmp_path, golden)[0].startswith(f"{golden.title}: new, ")
    assert store.load(tmp_path, kind) == {golden.key: golden}
    assert store.write(tmp_path, golden) == [f"{golden.title}: unchanged"]
    path = tmp_path / golden.path
    path.write_text(path.read_text().replace(golden.model, "x", 1))
    with pytest.raises(ValueError, match=f"{path.name}: its checksum does not match"):
        store.load(tmp_path, kind)


def test_every_committed_golden_is_read_and_valid():
    read = [golden.path for kind in (Golden, SpeedGolden, GemmGolden) for golden in store.load(GOLDEN, kind).values()]
    files = [path.relative_to(GOLDEN) for room in ("loss", "throughput") for path in GOLDEN.glob(f"{room}/**/*.json")]
    assert sorted(read) == sorted(files) and len(files) > 12


POLICY = '[[loss]]\nmargin = {margin}\nwhy = "{why}"\n'
HEAD = "check,metric,where,model,recipe,execution,value,source\n"
NUMBER = "gemm,fprop sqnr,gaussian,tiny,te-current,native,{},{}\n"
Write = Callable[..., list[str]]


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


CASES = [
    ("README.md", None, "words", []),
    ("numerics/shared.csv", HEAD, None, ["deleted"]),
    ("numerics/shared.csv", None, HEAD, ["new"]),
    (
        "numerics/shared.csv",
        HEAD + NUMBER.format(28.5, "a1"),
        HEAD + NUMBER.format(28.0, "b2"),
        [f"-{NUMBER.format(28.5, 'a1').strip()}", f"+{NUMBER.format(28.0, 'b2').strip()}"],
    ),
    (
        "policy.toml",
        POLICY.format(margin=0.005, why="a"),
        POLICY.format(margin=0.006, why="a"),
        ["-margin = 0.005", "+margin = 0.006"],
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "lines"), CASES)
def test_a_changed_file_is_shown_line_by_line(write: Write, name, old, new, lines):
    assert write(name, old, new) == [f"golden/{name}: {line}" for line in lines]


def test_changes_of_a_golden_are_counted():
    old: dict[str, Any] = {"commit": "a", "seeds": [{"loss": [1.0, 2.0, 3.0]}], "gone": 1}
    new: dict[str, Any] = {"commit": "b", "seeds": [{"loss": [1.0, 2.5, 3.1]}], "more": math.nan}
    assert changes(None, new) == ["new, 5 values"] and changes(new, new) == []
    assert changes(old, new) == [
        "removed: gone", "added: more", "commit: a -> b",
        "2 of 5 values changed, most seeds.0.loss.1: 2 -> 2.5 (+0.5)",
    ]  # fmt: skip


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
    assert "nowhere: not a commit of" in capsys.readouterr().err
    (golden / "loss").mkdir()
    (golden / "loss/a.json").write_text("{}")
    (golden / "loss/a.json").write_bytes(b"x\xff")
    commit(golden)
    (golden / "loss/a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"HEAD:golden/loss/a.json: not UTF-8 text at byte 1"):
        diff.diff(golden, "HEAD")
