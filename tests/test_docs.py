"""The documents: their commands run or at least parse, and their output is what is printed.

Commands stand without a prompt, in an ``sh`` fence (README: indented); a ``text`` fence right after holds what they print.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import own_models
import pytest
from curves import curve
from documents import PAGES, ROOT, assert_same, blocks, commands, conftest, environments, steps
from fp8parity import cli, recipes
from fp8parity.judging import goldens
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import file_name, write_json
from fp8parity.workload import corpus
from log_files import automodel
from sessions import GOLDEN

RUN = {"recipes", "power", "judge", "merge", "compare", "bounds", "import", "verdict", "predict"}
"""Subcommands that take seconds; of the others the options are parsed. A command with ``--gpu here`` needs a GPU."""
SHOWING = {"gemm", "split"}
"""Subcommands that need a GPU, and with ``--from`` take seconds."""
WITHIN = {"ablate": 10}
"""Subcommands that train, and by how much the numbers of another CPU may differ (percentage points; without AVX-512 it is 8). The output of
all others is the same everywhere."""
ONE_PART = {"tests": "tests/test_shapes.py", "suites/numerics": "suites/numerics/test_numerics.py::test_gradients"}
CONFIG = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "vocab_size": 128256,
}
"""The config.json of a reader."""

BLOCKS = [b for page in PAGES for b in blocks(page)] + steps(ROOT / ".github/workflows/parity.yml")
COMMANDS = [pytest.param(b, c, id=f"{b.id} {' '.join(c)}") for b in BLOCKS for c in commands(b)]
SHOWN = [pytest.param(b, id=b.id) for b in BLOCKS if b.output]


@pytest.fixture
def catalogue() -> Iterator[None]:
    """What hooks add to is put back."""
    with recipes.RECIPES.restored(), corpus.CORPORA.restored():
        yield


@pytest.fixture(scope="module")
def own_goldens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the goldens for all commands. None of those that run here changes it."""
    copy = tmp_path_factory.mktemp("docs") / "golden"
    shutil.copytree(ROOT / "golden", copy)
    before = {p: p.stat().st_mtime_ns for p in copy.rglob("*.*")}
    yield copy
    assert {p: p.stat().st_mtime_ns for p in copy.rglob("*.*")} == before


@pytest.fixture
def folder(tmp_path: Path, own_goldens: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user's command runs: the goldens are at hand and read once, what it writes is gone afterwards."""
    load = goldens.load
    monkeypatch.setattr(goldens, "load", lambda folder: load(GOLDEN if folder.resolve() == own_goldens else folder))
    (tmp_path / "golden").symlink_to(own_goldens)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def stand_in(trajectory) -> Callable[[Path, bool], None]:
    """Makes a small record set, or a run of another framework, where a document names one of the reader's."""

    def make(path: Path, imported: bool) -> None:
        if imported:
            automodel(path, curve(chaos=int("fp8" in path.name)))
            return
        out = path.with_suffix("") if path.suffix == ".zip" else path
        model = (
            "mini" if path.name == "trial" else "nano"
        )  # margins.md names the model; first gradients of nano have no numbers
        for recipe, execution in (("bf16", "native"), ("te-current", "emulated")):
            cell = Cell(model=model, recipe=recipe, execution=Execution(execution), corpus="topics")
            for seed in range(3):
                gap = 0.001 * (seed + 1) if recipe != "bf16" else 0.0
                write_json(out / file_name(cell, f"seed{seed}"), trajectory(recipe, seed, gap, cell=cell))
        sqnr = Measurement(metric="fprop sqnr", where="gaussian", value=28.46)
        record = Measurements(
            cell=cell, check="gemm", values=[sqnr], provenance=trajectory().provenance, session=path.stem
        )
        write_json(out / file_name(cell, "gemm"), record)
        if out != path:
            assert cli.main(["merge", str(path), str(out)]) == 0

    return make


def parsed(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> argparse.Namespace:
    """What the real parser makes of a command's arguments; it exits on an option that it does not know."""
    seen: list[argparse.Namespace] = []

    def keep(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    with monkeypatch.context() as patch:
        for name in cli.COMMANDS:
            patch.setitem(cli.COMMANDS, name, keep)
        assert cli.main(arguments) == 0
    return seen[0]


def inputs(args: argparse.Namespace) -> list[Path]:
    named = [getattr(args, name, None) for name in ("records", "sets", "old", "new", "runs", "bf16", "fp8", "repeat")]
    return [p for found in named if found for p in (found if isinstance(found, list) else [found])]


def check_fp8parity(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[Path, bool], None]
) -> None:
    if arguments[:1] == ["run"]:  # the other arguments belong to pytest
        return check_pytest(
            [*(f"suites/{a}" if (ROOT / "suites" / a).is_dir() else a for a in arguments[1:]), "-n0"], monkeypatch, []
        )
    args = parsed(monkeypatch, arguments)
    if (args.command in RUN and getattr(args, "gpu", "") != "here") or (args.command in SHOWING and args.given):
        for path in inputs(args):
            if not path.exists():
                stand_in(path, args.command in ("import", "verdict"))
        assert cli.main(arguments) in (0, 1), "2: the command could not do its work"


def check_pytest(arguments: list[str], monkeypatch: pytest.MonkeyPatch, plugins: list[types.ModuleType]) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in (("JOB_INDEX", "1"), ("JOB_TOTAL", "2")):  # for --parity-shard auto
        monkeypatch.setenv(f"STRATEGY_{name}", value)
    # The last --junitxml counts: nothing is left in the tree. At its end, a pytest searches the memory of this process for garbage, twice.
    quiet = (
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:unraisableexception",
        f"--junitxml={os.devnull}",
    )
    assert pytest.main([*fewer(arguments), *quiet], plugins=plugins) == pytest.ExitCode.OK


def fewer(arguments: list[str]) -> list[str]:
    """The arguments with one part for a whole folder. The options are the same for each part, and a whole folder takes longer."""
    return arguments if "-k" in arguments else [ONE_PART.get(a, a) for a in arguments]


def check_script(path: str, *arguments: str) -> None:
    source = (ROOT / ("" if "/" in path else "benchmarks") / path).read_text()
    for option in (a for a in arguments if a.startswith("--")):
        assert f'"{option}"' in source, f"{path} has no {option}"


def check_pip(*arguments: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for a in arguments:
        for name in re.findall(r"^\.\[(.*)\]$", a):
            assert set(name.split(",")) <= set(extras), a


def check_tox(*arguments: str) -> None:
    asked = [name for flag, names in itertools.pairwise(arguments) if flag == "-e" for name in names.split(",")]
    known = environments((ROOT / "tox.ini").read_text())
    asked = [name for name in asked if "*" not in name]  # a variable of the workflow
    assert set(asked) <= known, f"no tox environment {sorted(set(asked) - known)}"


@pytest.mark.parametrize(("block", "command"), COMMANDS)
def test_command(block, command, folder, monkeypatch, stand_in, catalogue):
    program, *arguments = command
    if program == "fp8parity":
        check_fp8parity(arguments, monkeypatch, stand_in)
    elif program == "pytest":
        if block.page == own_models.PAGE:
            own_models.write(folder, own_models.SHORT)
            monkeypatch.syspath_prepend(folder)
        check_pytest(arguments, monkeypatch, conftest(block.page))
    else:
        others: dict[str, Callable[..., None]] = {"script": check_script, "pip": check_pip, "tox": check_tox}
        others[program](*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("block", SHOWN)
def test_output_is_what_is_printed(block, folder, capsys, eager):
    if block.language == "python":
        exec(compile(block.text, block.id, "exec"), {})
    for _, *arguments in commands(block):
        assert cli.main(arguments) == 0
    within = max((WITHIN.get(subcommand, 0) for _, subcommand, *_ in commands(block)), default=0)
    assert_same(capsys.readouterr().out.rstrip(), block.output.rstrip(), within)


@pytest.mark.parametrize(
    ("printed", "shown", "within"),
    [
        ("a gap of +41.020%", "a gap of 41.020%", 0),
        ("a gap of 1.50x", "a gap of 1.5x", 0),
        ("fprop +41%", "fprop +52%", 10),
        ("fprop +41%", "fprop +30%", 10),
        ("fprop +41%", "dgrad +41%", 10),
        ("fprop +41% -", "fprop +41% +41%", 10),
    ],
)
def test_what_differs_is_not_the_same(printed, shown, within):
    with pytest.raises(AssertionError):
        assert_same(printed, shown, within)


def test_another_cpu_may_print_other_numbers():
    assert_same("fprop +41% [+9%, +49%]", "fprop  +44%  [+10%, +41%]", 10)


PLANTS = {
    "an option of pytest": "```sh\npytest suites/convergence --recipes te-current\n```\n",
    "a recipe": "```sh\npytest suites/convergence --recipe te-curent\n```\n",
    "a path": "    pytest suites/convergance\n",
    "an option of the command line": "```sh\nfp8parity power --modell tiny\n```\n",
    "a subcommand": "```yaml\n- run: python -m fp8parity jugde .parity\n```\n",
    "an option of a script": "```sh\npython benchmarks/train_many.py --seed 1\n```\n",
    "an extra": "```sh\npip install -e '.[tee]'\n```\n",
    "an environment": "```sh\ntox -e h200\n```\n",
}


@pytest.mark.parametrize("text", PLANTS.values(), ids=PLANTS)
def test_a_wrong_command_is_red(text, tmp_path, folder, monkeypatch, stand_in, catalogue):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}")
    [command] = [c for b in blocks(page) for c in commands(b)]
    with pytest.raises((AssertionError, SystemExit)):
        test_command(blocks(page)[0], command, folder, monkeypatch, stand_in, catalogue)


def test_output_that_differs_is_red(tmp_path, folder, capsys, eager):
    page = tmp_path / "page.md"
    page.write_text("```sh\nfp8parity power --sd 0.1%\n```\n\n```text\nte-current on tiny: 2 seeds\n```\n")
    with pytest.raises(AssertionError):
        test_output_is_what_is_printed(blocks(page)[0], folder, capsys, eager)
