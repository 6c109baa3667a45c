"""Each kind of file of a golden folder in ``golden diff``: whole lines, what is left out, and what git says."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fp8parity.judging.references import diff as golden_diff
from fp8parity.judging.references import sessions
from fp8parity.judging.references.timed import GemmGolden
from gemm_records import GPU, ROW, made

POLICY = '[[loss]]\nmargin = 0.005\nwhy = "at first"\n'
HEAD = "check,metric,where,model,recipe,execution,value,source\n"
NUMBER = "gemm,fprop sqnr,gaussian,tiny,te-current,native,{},{}\n"
TODAY = datetime.date(2026, 11, 23)
Write = Callable[..., list[str]]


def commit(folder: Path) -> None:
    for command in ("add -A", "-c user.name=t -c user.email=t@t commit -qm x --allow-empty"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A committed folder with a policy."""
    (folder := tmp_path / "golden").mkdir()
    (folder / "policy.toml").write_text(POLICY)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return folder


@pytest.fixture
def write(golden: Path) -> Write:
    """Writes a file in two versions, the first of which is committed (None: no file), and returns what changed."""

    def of(name: str, *versions: str | bytes | None) -> list[str]:
        path = golden / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for version, content in enumerate(versions):
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            if not version:
                commit(golden.parent)
        return golden_diff.diff(golden, "HEAD")

    return of


@pytest.mark.parametrize(
    ("name", "old", "new", "lines"),
    [
        ("README.md", None, "words", []),
        ("numerics/shared.csv", HEAD + NUMBER.format(28.5, "a1"), None, ["numerics/shared.csv: deleted"]),
        ("claims.toml", '[[claim]]\nname = "x"\nwhy = "w"\n', None, ["claims.toml: deleted"]),
        (
            "claims.toml",
            '[[claim]]\nname = "x"\nvalue = 1\n[[claim]]\nname = "y"\nvalue = 5\n',
            '[[claim]]\nname = "x"\nvalue = 2\n[[claim]]\nname = "z"\nvalue = 7\nlimit = 9\n',
            [
                "claims.toml: - [[claim]] name y (no reason given)",
                "claims.toml: [[claim]] name x: value 1 -> 2 (+1) (no reason given)",
                "claims.toml: + [[claim]] name z: value = 7, limit = 9 (no reason given)",
            ],
        ),
        (
            "claims.toml",
            '[[claim]]\nname = "x"\nwhy = "w"\n[claim.expect.te-current]\ngaussian = 28.5\n',
            '[[claim]]\nname = "x"\nwhy = "w"\n[claim.expect.te-current]\ngaussian = 28.0\n',
            ["claims.toml: [[claim]] name x: expect.te-current.gaussian 28.5 -> 28.0 (-0.5) (w)"],
        ),
        (
            "numerics/shared.csv",
            HEAD + NUMBER.format(28.5, "a1"),
            HEAD + NUMBER.format(28.0, "b2"),
            [
                "numerics/shared.csv: gemm, fprop sqnr, gaussian, tiny, te-current, native: value 28.5 -> 28.0 (-0.5), source a1 -> b2"
            ],
        ),
    ],
)
def test_what_a_file_tells(write: Write, name: str, old: str | None, new: str | None, lines: list[str]):
    assert write(name, old, new) == [f"golden/{line}" for line in lines]


def rows(table: str, *recipes: str) -> str:
    """Rows of a table, one for each recipe ("": a row that selects every cell)."""
    return "".join(
        f"[[{table}]]\n" + (f'recipe = "{r}"\n' if r else "") + f'band = 1\nwhy = "of {r}"\n' for r in recipes
    )


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (rows("loss", "", *"abcdefg"), rows("loss", *"abcdefg", ""), ["[[loss]] every cell: moved from row 1 to row 8; later rows win"]),
        (rows("band", *"abcd"), rows("band", *"dabc"), ["[[band]] recipe d: moved from row 4 to row 1; later rows win"]),
        (rows("speed", *"abc"), rows("speed", *"ac"), ["- [[speed]] recipe b (of b)"]),
        (rows("speed", *"abc"), rows("speed", *"axbc"), ["+ [[speed]] recipe x: band = 1 (of x)"]),
        (
            rows("rule", *"abcdef"),
            rows("rule", *"cxbefa"),
            [
                "- [[rule]] recipe d (of d)",
                "+ [[rule]] recipe x: band = 1 (of x)",
                "[[rule]] recipe c: moved from row 3 to row 1; later rows win",
                "[[rule]] recipe a: moved from row 1 to row 6; later rows win",
            ],
        ),
        (rows("alike", *"ab") + rows("loss", *"ab"), rows("loss", *"ab") + rows("alike", *"ab"), ["only its layout changed"]),
        (rows("metric", *"abc"), rows("metric", *"bca"), ["[[metric]] recipe a: moved from row 1 to row 3"]),
        ("[[loss]]\nrecipe = ['b']\n", "[[loss]]\nrecipe = 'b'\n\n# b\n", ["only its layout changed"]),
        ("[[known]]\nnumber = [{ low = nan }]\n", "# nan\n[[known]]\nnumber = [{ low = nan }]\n", ["only its layout changed"]),
        ("[[x]]\nlow = nan\nhigh = 1\n", "[[x]]\nlow = nan\nhigh = 2\n", ["[[x]] every cell: high 1 -> 2 (+1) (no reason given)"]),
        (
            rows("loss", "", "a", ""),
            rows("loss", "", "", "a"),
            ["[[loss]] every cell (row 2): moved from row 3 to row 2; later rows win"],
        ),
    ],
)  # fmt: skip
def test_the_order_of_rows_is_told(write: Write, old: str, new: str, lines: list[str]):
    """The last row that selects a cell applies, so a row that moved says something else. As few rows as possible are named."""
    assert write("policy.toml", old, new) == [f"golden/policy.toml: {line}" for line in lines]


@pytest.mark.parametrize("table", ["loss", "golden", "speed", "gemm", "rule", "band", "complete"])
def test_later_rows_win_in_each_table_that_selects_cells(write: Write, table: str):
    told = f"golden/policy.toml: [[{table}]] recipe a: moved from row 1 to row 3; later rows win"
    assert write("policy.toml", rows(table, *"abc"), rows(table, *"bca")) == [told]


def test_goldens_of_gemms_tell_their_ratios(golden: Path):
    def stored(training: float) -> list[str]:
        sessions.store(golden, made(training=training), ROW)
        return golden_diff.diff(golden, "HEAD")

    name = golden / GemmGolden.model_construct(gpu=GPU, model="codonfm-5b").path.relative_to(golden.parent)
    new = stored(1.6)
    path = golden.parent / name
    assert new == [f"{name}: {line}" for line in gemm_goldens.changes(None, gemm_goldens.read(path))]
    commit(golden.parent)
    before = gemm_goldens.read(path)
    moved = stored(1.4)
    assert moved == [f"{name}: {line}" for line in gemm_goldens.changes(before, gemm_goldens.read(path))]
    assert moved and moved != new


def test_a_revision_without_a_policy_gives_no_verdicts(golden: Path):
    (golden / "policy.toml").rename(golden / "tolerances.toml")
    commit(golden.parent)
    words = (
        "HEAD: its golden has no policy.toml: the revision is older than this layout, so no verdict can be made by it"
    )
    with pytest.raises(ValueError, match=f"^{words}$"):
        golden_diff.changed_verdicts(golden, "HEAD", [], TODAY)


def test_a_damaged_policy_of_the_revision_is_named_by_the_revision(golden: Path):
    """Its files were read in a scratch folder, which nobody can open afterwards."""
    (golden / "policy.toml").write_text('[[loss]]\nmargin = 0.005\nwhy = "short"\n')
    commit(golden.parent)
    (golden / "policy.toml").write_text(POLICY)
    words = "HEAD:golden/policy.toml:1: [[loss]] key why: String should have at least 10 characters"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        golden_diff.changed_verdicts(golden, "HEAD", [], TODAY)


@pytest.mark.parametrize(("revision", "shown"), [("nowhere", "nowhere"), ("n\udcff", "n�")])
def test_what_git_says_is_told_with_its_command(golden: Path, revision: str, shown: str):
    """Also if the revision is no UTF-8."""
    words = f"git ls-tree -r --name-only -z {revision}^{{commit}} -- golden: fatal: Not a valid object name {shown}^{{commit}}"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        golden_diff.diff(golden, revision)


def test_a_committed_file_that_is_no_text_is_named(write: Write):
    words = "HEAD:golden/numerics/shared.csv: not UTF-8 text at byte 1; the file may be damaged"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        write("numerics/shared.csv", b"x\xff", HEAD)


def test_a_name_that_is_no_text_is_refused_with_the_folder(golden: Path):
    (golden / os.fsdecode(b"x\xff.json")).write_text("{}")
    commit(golden.parent)
    with pytest.raises(ValueError, match=r"^golden: not UTF-8 text at byte \d+; the file may be damaged$"):
        golden_diff.diff(golden, "HEAD")
