"""The commands and examples in the documents run, or at least parse, and printed output is what is shown."""

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
from dataclasses import replace
from pathlib import Path

import own_models
import processes
import pytest
from curves import curve
from documents import EXTEND, PAGES, ROOT, Block, blocks, commands, conftest, environments, example, steps
from fp8parity import checks, cli, recipes
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements, Module
from fp8parity.records.storage import file_name, write_json
from fp8parity.workload import corpus
from fp8parity.workload.optimizers import OPTIMIZERS
from log_writers import automodel
from sessions import cell, verdict

RUN = {"recipes", "power", "judge", "merge", "compare", "import", "verdict"}
"""Subcommands that take seconds; of the others the options are parsed. A command with ``--gpu here`` needs a GPU."""
SHOWING = {"gemm", "split"}
"""Subcommands that need a GPU, and with ``--from`` take seconds."""
ONE_PART = {"tests": "tests/test_layering.py", "suites/numerics": "suites/numerics/test_numerics.py::test_gradients"}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "vocab_size": 128256,
}
"""The config.json of a reader."""

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
BLOCKS = [b for page in PAGES for b in blocks(page)] + [b for path in WORKFLOWS for b in steps(path)]
LARGE = {"golden/records/h200.zip": "golden/records/epyc.zip"}
"""A set that takes half a minute, and a smaller one of the same kinds of records."""
CONVERTED = Module(fqn="a", kind="EmulatedLinear", config="fprop_x: e4m3 tensor te-fp32")
FREE = {"-n", "--parity-records", "--parity-report", "--report", "--junitxml"}
"""Options whose values do not matter to a test."""


def of_lab(command: list[str]) -> bool:
    """Return whether a command needs the lab, which may be deleted: its commands, scripts or tests."""
    return any(word.startswith("lab/") for word in command) or command[1:2] in [[name] for name in cli.LAB]


EVERY = [
    (b, c)
    for b in BLOCKS
    for c in commands(b)
    if not {"my_suites", "trainers.toml", "train.py"} & set(c)  # the reader's: test_shipped.py runs them
    if (ROOT / "lab").exists() or not of_lab(c)
]


def parsed(command: list[str]) -> bool:
    """Return whether pytest collects a command, and runs nothing."""
    return command[0] == "pytest" or command[:2] == ["fp8parity", "run"]


def words_of(command: list[str]) -> set[tuple[str, str]]:
    """Return the words of a command with what runs it, except values that do not matter and the reader's own files."""
    kind = "pytest" if parsed(command) else " ".join(command[:2])
    own = re.compile(r"[\w./-]+\.(zip|html|md|json|jsonl|csv)|(old|new|all|sets)(/\w+)?")
    pairs = zip(("", *command), command, strict=False)
    return {(kind, w) for option, w in pairs if option not in FREE and (not own.fullmatch(w) or (ROOT / w).exists())}


def with_new_words() -> list[tuple[Block, list[str]]]:
    """Return commands that have a word each that no longer one has: together they have all words of the pages."""
    seen, kept = set[tuple[str, str]](), []
    for block, command in sorted(EVERY, key=lambda pair: -len(pair[1])):
        kept += [(block, command)] if words_of(command) - seen else []
        seen |= words_of(command)
    return kept


COMMANDS = with_new_words()
SHOWN = [pytest.param(b, id=b.id) for b in BLOCKS if b.output and b.language == "python"]


@pytest.fixture
def catalogue() -> Iterator[None]:
    """Restore the tables that hooks add to."""
    with recipes.RECIPES.restored(), corpus.CORPORA.restored():
        yield


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the goldens once for all commands."""
    copy = tmp_path_factory.mktemp("docs") / "golden"
    shutil.copytree(ROOT / "golden", copy)
    return copy


@pytest.fixture
def folder(tmp_path: Path, goldens: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder in which a user's command runs."""
    (tmp_path / "golden").symlink_to(goldens)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def stand_in(trajectory) -> Callable[[Path, bool], None]:
    """Return a function that makes a small record set, or a logged run, where a document names one of the reader's."""

    def make(path: Path, imported: bool) -> None:
        if imported:
            run = f"{path.parent.name}/{path.name}"
            automodel(path, curve(seed=int("-1" in run), chaos=int("fp8" in run)))
            return
        out = path.with_suffix("") if path.suffix == ".zip" else path
        model = "mini" if path.name == "trial" else "nano"  # policy.md names mini; nano has no numbers
        for recipe, execution in (("bf16", "native"), ("te-current", "emulated")):
            cell = Cell(model=model, recipe=recipe, execution=Execution(execution), corpus="topics")
            for seed in range(3):
                gap = 0.001 * (seed + 1) if recipe != "bf16" else 0.0
                quantized = [CONVERTED] if gap else []
                write_json(
                    out / file_name(cell, f"seed{seed}"), trajectory(recipe, seed, gap, cell=cell, inventory=quantized)
                )
        sqnr = Measurement(metric="fprop sqnr", where="gaussian", value=28.46)
        record = Measurements(
            cell=cell, check="gemm", values=[sqnr], provenance=trajectory().provenance, session=path.stem
        )
        write_json(out / file_name(cell, "gemm"), record)
        if out != path:
            assert cli.main(["merge", str(path), str(out)]) == 0

    return make


def inputs(args: argparse.Namespace) -> list[Path]:
    named = [getattr(args, name, None) for name in ("records", "sets", "old", "new", "runs", "bf16", "fp8", "repeat")]
    pairs = [p for pair in getattr(args, "seed", None) or () for p in pair]
    return [p for found in named if found for p in (found if isinstance(found, list) else [found])] + pairs


def check_fp8parity(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[Path, bool], None]
) -> None:
    args = cli.parser().parse_args(arguments)
    if (args.command in RUN and getattr(args, "gpu", "") != "here") or (args.command in SHOWING and args.given):
        for path in inputs(args):
            if not path.exists():
                stand_in(path, args.command in ("import", "verdict"))
        smaller = [LARGE.get(a, a) for a in arguments]
        assert cli.main(smaller) in (0, 1), "2: the command could not do its work"


def check_pytest(arguments: list[str], monkeypatch: pytest.MonkeyPatch, plugins: list[types.ModuleType]) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in (("JOB_INDEX", "1"), ("JOB_TOTAL", "2")):  # for --parity-shard auto
        monkeypatch.setenv(f"STRATEGY_{name}", value)
    if "--pyargs" in arguments:  # the suites of an installed wheel
        arguments = ["suites/convergence" if a == "fp8parity.suites" else a for a in arguments if a != "--pyargs"]
    # The last --junitxml counts: nothing is left in the tree.
    left_out = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
    quiet = ["--collect-only", "-q", *left_out, f"--junitxml={os.devnull}"]
    # One part stands for a whole folder: the options are the same for each part.
    fewer = arguments if "-k" in arguments else [ONE_PART.get(a, a) for a in arguments]
    with OPTIMIZERS.restored():  # a plugin of the lab replaces some
        assert pytest.main([*fewer, *quiet], plugins=plugins) == pytest.ExitCode.OK


def check_script(path: str, *arguments: str) -> None:
    source = (ROOT / path).read_text()
    for option in (a for a in arguments if a.startswith("--")):
        assert f'"{option}"' in source, f"{path} has no {option}"


def check_pip(*arguments: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for a in arguments:
        for name in re.findall(r"^(?:\.|(?:\.{1,2}/)?fp8-parity)\[(.*)\]$", a):
            assert set(name.split(",")) <= set(extras), a


def check_tox(*arguments: str) -> None:
    asked = [name for flag, names in itertools.pairwise(arguments) if flag == "-e" for name in names.split(",")]
    known = environments((ROOT / "tox.ini").read_text())
    asked = [name for name in asked if "*" not in name]  # a variable of the workflow
    assert set(asked) <= known, f"no tox environment {sorted(set(asked) - known)}"


@pytest.mark.slow
@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[" ".join(c) for _, c in COMMANDS])
def test_command_in_a_page_runs(block, command, folder, monkeypatch, stand_in, catalogue):
    program, *arguments = command
    if command[:2] == ["fp8parity", "run"]:  # the other arguments belong to pytest
        suites = (f"suites/{a}" if (ROOT / "suites" / a).is_dir() else a for a in arguments[1:])
        program, arguments = "pytest", [*suites, "-n0"]
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


@pytest.mark.parametrize("block", SHOWN)
def test_python_in_a_page_prints_what_is_shown(block, capsys, eager):
    exec(compile(block.text, block.id, "exec"), {})
    assert capsys.readouterr().out == block.output


PLANTS = {
    "an option of pytest": "```sh\npytest suites/convergence --recipes te-current\n```\n",
    "a recipe": "```sh\npytest suites/convergence --recipe te-curent\n```\n",
    "a path": "    pytest suites/convergance\n",
    "an option of the command line": "```sh\nfp8parity judge .parity --reportt page.md\n```\n",
    "a subcommand": "```yaml\n- run: python -m fp8parity jugde .parity\n```\n",
    "an option of a script": "```sh\npython docs/reference.py --seed 1\n```\n",
    "an extra": "```sh\npip install -e '.[tee]'\n```\n",
    "an environment": "```sh\ntox -e h200\n```\n",
}


@pytest.mark.parametrize("text", PLANTS.values(), ids=PLANTS)
def test_wrong_command_in_a_page_fails(text, tmp_path, folder, monkeypatch, stand_in, catalogue):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}")
    [(block, command)] = [(b, c) for b in blocks(page) for c in commands(b)]
    with pytest.raises((AssertionError, SystemExit)):
        test_command_in_a_page_runs(block, command, folder, monkeypatch, stand_in, catalogue)


@pytest.mark.slow
def test_the_check_that_extend_shows(monkeypatch, tmp_path, session, eager):
    """It measures, and its rule bounds it on both sides."""
    rows = next(b for b in EXTEND if b.language == "toml")
    (tmp_path / "policy.toml").write_text(rows.text)
    [check] = example(1).pytest_fp8parity_checks()
    monkeypatch.setitem(checks.CHECKS, check.name, check)
    record = session.measure("gain", cell("te-current", "emulated"))
    assert [m.metric for m in record.values] == ["fprop gain", "dgrad gain", "wgrad gain"]
    assert verdict(record, tmp_path).status == "pass"
    for factor in (0.97, 1.03):
        wrong = [replace(m, value=m.value * factor) for m in record.values]
        assert verdict(record.model_copy(update={"values": wrong}), tmp_path).status == "fail"


@pytest.mark.slow
def test_a_check_is_added_without_editing_the_library(tmp_path):
    """The three blocks of docs/extend.md in a user's own project, and nothing else."""
    check, test, rule = (b.text for b in EXTEND[1:])
    (tmp_path / "pytest.ini").write_text("[pytest]\nfp8parity_golden_dir = mine\n")
    (tmp_path / "conftest.py").write_text(f'{check}\npytest_plugins = ("fp8parity.gate.plugin",)\n')
    (tmp_path / "test_gain.py").write_text(test)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "policy.toml").write_text(rule)
    done = processes.run("pytest", "-q", "--recipe", "te-current", "--execution", "emulated", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "Accept: the only check is green." in done.stdout
