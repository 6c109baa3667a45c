"""The package stands alone: a wheel carries the suites and goldens, and its commands work in an empty folder."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import fp8parity
import printed_commands
import pytest
from curves import curve
from documents import blocks
from fp8parity import gate, shipped
from fp8parity.gate import entry
from log_writers import automodel
from processes import NIGHTLY, ROOT, run, without_compiler

ENTRY = () if importlib.metadata.entry_points(group="pytest11", name="fp8parity") else ("-p", "fp8parity.gate.entry")
"""An installed package has an entry point. Where the library is only on the path, the plugin is named."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as a wheel installs it: suites and goldens inside the package. The compiled files of the clone are beside the sources, as
    pip leaves them, so that no process compiles them anew."""
    package = tmp_path_factory.mktemp("site") / "fp8parity"
    shutil.copytree(ROOT / "fixtures" / "fp8parity", package)
    shutil.copytree(ROOT / "suites", package / "suites", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "golden", package / "golden", ignore=shutil.ignore_patterns("records"))
    return package.parent


def python(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module with only the installed library on the path, and without a C++ compiler."""
    (tools := folder / "bin").mkdir(exist_ok=True)
    return _run([sys.executable, "-P", "-m", *arguments], site, folder, tools)


def _run(command: list[str], site: Path, folder: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(site), "PATH": without_compiler(tools), "COLUMNS": "120", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_wheel_carries_suites_and_goldens_and_no_records(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        points = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    golden = [p for p in (ROOT / "golden").rglob("*") if p.suffix in (".json", ".toml", ".csv")]
    wanted = {f"fp8parity/{p.relative_to(ROOT).as_posix()}" for p in [*golden, *(ROOT / "suites").rglob("*.py")]}
    assert wanted - names == set()
    assert not any("records" in n and n.endswith(".zip") for n in names)
    assert "fp8parity = fp8parity.gate.entry" in points and "fp8parity = fp8parity.cli:main" in points


def without_suites(site: Path, folder: Path, commands: list[list[str]]) -> tuple[str, list[str]]:
    """Run commands where the packages of the extra "suites" are missing. Return their exit statuses and errors."""
    (folder / "light.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({shipped.SUITES}))\nfrom fp8parity.cli import main\n"
        f"print(*[int(main(command)) for command in {commands}])\n"
    )
    done = python(Path(f"{folder}:{site}"), folder, "light")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1], done.stderr.splitlines()


@pytest.mark.slow
def test_judging_needs_no_torch_and_no_pytest(installed, tmp_path):
    sets = {name: str(ROOT / f"golden/records/{name}.zip") for name in ("micro-xeon", "gemms")}
    for chaos, name in enumerate(("bf16", "fp8")):
        automodel(tmp_path / f"{name}.jsonl", curve(chaos=chaos))
    micro, upgrade = sets["micro-xeon"], ROOT / "golden/records/upgrades"
    reports = [word for ending in ("html", "md", "json", "csv") for word in ("--report", f"report.{ending}")]
    commands = [
        ["judge", micro, *reports],
        ["compare", *(f"{upgrade}/xeon-torchao-0.{minor}.0.zip" for minor in (17, 18)), "--report", "compare.html"],
        ["import", "bf16.jsonl"],
        ["verdict", "bf16.jsonl", "fp8.jsonl", "--report", "verdict.html"],
        ["golden", "diff", "HEAD", "--golden-dir", str(ROOT / "golden")],
        *(
            ["merge", "merged.zip", micro],
            ["golden", "bounds", micro],
            ["plan"],
            ["recipes", "te-current"],
        ),
        ["gemm", "--from", sets["gemms"]],
    ]
    assert without_suites(installed, tmp_path, commands) == (" ".join("0" * len(commands)), [])


@pytest.mark.slow
def test_what_trains_says_what_to_install(installed, tmp_path):
    commands = [["run", "numerics"], ["demo"], ["gemm", "1b"], ["calibrate"]]
    missing = ["pytest", *["torch"] * 3]
    said = [
        f"fp8parity: {command} {shipped.needs(name)}" for [command, *_], name in zip(commands, missing, strict=True)
    ]
    assert without_suites(installed, tmp_path, commands) == ("2 2 2 2", said)


@pytest.mark.slow
def test_pytest_without_torch_runs_other_tests_and_refuses_suites(installed, tmp_path):
    (tmp_path / "no_torch.py").write_text("import sys\nsys.modules['torch'] = None\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    site, start = Path(f"{tmp_path}:{installed}"), ("pytest", "-p", "no_torch", *ENTRY)
    assert "1 passed" in python(site, tmp_path, *start, "test_own.py").stdout
    refused = python(site, tmp_path, *start, "--pyargs", "fp8parity.suites.numerics")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert refused.stderr.strip() == f"ERROR: a gate of fp8-parity {shipped.needs('torch')}"


def test_judging_needs_only_the_packages_without_an_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split("[><=]", requirement)[0] for requirement in project["dependencies"]}
    code = (
        "import sys; before = set(sys.modules)\n"
        "from fp8parity.cli import judge, compare; from fp8parity.report import RENDERERS\n"
        "paths = {n.split('.')[0] for n, m in sys.modules.items() if n not in before and 'site-packages' in (getattr(m, '__file__', '') or '')}\n"
        "print(*paths)"
    )
    environment = {"PYTHONPATH": str(ROOT / "fixtures"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    of_others = {"_cyutility", "annotated_types", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert set(done.stdout.split()) - of_others - {"charset_normalizer"} <= names


def test_the_extra_has_the_packages_that_judging_lacks():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        re.split("[><=]", requirement)[0].removeprefix("pytest-x").replace("dist", "xdist")
        for requirement in extras["suites"]
    }
    assert named == set(shipped.SUITES)


def test_a_change_is_a_short_file_of_a_known_kind():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in settings["type"])
    for path in (ROOT / "changes").glob("[!.]*"):
        assert re.fullmatch(rf"(?:\d+|\+[\w-]+)\.({kinds})\.md", path.name), path.name
        assert len(path.read_text().splitlines()) <= 2, path.name


def test_newest_version_of_a_file_is_this_one():
    for file, key in (
        ("CITATION.cff", "version: "),
        ("CHANGELOG.md", "## "),
        ("docs/versions.md", "|---|---|---|---|\n| "),
    ):
        first = re.search(rf"^{re.escape(key)}(\d\S+)", (ROOT / file).read_text(), re.M)
        assert first and first[1] == fp8parity.__version__, file


def test_a_users_goldens_come_first_and_a_clone_ships_its_own(tmp_path):
    assert shipped.folder("golden") == ROOT / "golden" and shipped.folder("suites") == ROOT / "suites"
    assert shipped.goldens(tmp_path) == ROOT / "golden"
    (tmp_path / "golden").mkdir()
    assert shipped.goldens(tmp_path) == tmp_path / "golden"


def test_a_page_is_a_file_in_a_clone_and_an_address_elsewhere(tmp_path, monkeypatch):
    """Also where the package is only on the path."""
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **given: iter(()))
    monkeypatch.chdir(ROOT)
    assert shipped.page("docs/ci.md#x") == "docs/ci.md#x"
    monkeypatch.chdir(tmp_path)
    address = shipped.page("docs/ci.md#x")
    assert address.endswith(f"/v{fp8parity.__version__}/docs/ci.md#x")
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "fixtures" / "fp8parity")
    assert shipped.page("docs/ci.md#x") == address, "a container without the pages"


def test_run_takes_convergence_by_default_and_names_an_unknown_suite(tmp_path):
    found = gate.arguments(["-m", "h100", "-k", "numerics"], tmp_path)
    assert found[-5:] == [str(ROOT / "suites" / "convergence"), "-m", "h100", "-k", "numerics"]
    assert f"--rootdir={tmp_path}" in found
    done = run("fp8parity", "run", "numerix")
    assert done.returncode == 2
    assert "no suite 'numerix'; known: convergence, distributed, numerics, throughput" in done.stderr


@pytest.mark.slow
def test_one_command_judges_in_an_empty_folder(installed, tmp_path):
    (folder := tmp_path / "empty").mkdir()
    words = ("fp8parity", "run", "numerics", "-k", "gemm or codes", "--recipe", "te-current", "-q")
    done = python(installed, folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Accept" in done.stdout
    assert "warning" not in (done.stdout + done.stderr).lower() and "configfile" not in done.stdout
    assert (folder / ".parity" / "te-current-tiny-emulated-topics-gemm.json").is_file()
    judged = python(installed, folder, "fp8parity", "judge", ".parity")
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.slow
def test_pyargs_needs_no_conftest(installed, tmp_path):
    terms = ("--pyargs", "fp8parity.suites.convergence", "--collect-only", "-q", "-m", "h100")
    done = python(installed, tmp_path, "pytest", *ENTRY, *terms)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_loss_parity[te-current-tiny-native]" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", ["fp8parity", "pytest"], ids=["wheel", "clone"])
def test_printed_commands_select_tests_where_they_are_printed(program, installed, tmp_path):
    site = installed if program == "fp8parity" else ROOT / "fixtures"
    printed_commands.project(tmp_path, clone=program == "pytest")
    done = python(Path(f"{site}:{ROOT / 'tests'}"), tmp_path, "printed_commands")
    found = json.loads(done.stdout)
    assert {kind: text for kind, text in found.items() if not text[1]} == {}
    assert {text.split()[0] for kind, (text, *_) in found.items() if "repeat" in kind} == {program}
    assert "own trainer: then" not in found and "--golden-update" in found["golden of a trainer: repeat"][0]


@pytest.mark.slow
@NIGHTLY
@pytest.mark.parametrize("page", ["your-model.md", "your-runs.md", "trainers.md"])
def test_page_followed_literally_from_an_empty_folder_works(page, installed, tmp_path):
    """Files get the name that the page says last before them; what is said of one file twice follows in it."""
    (tools := tmp_path / "tools").mkdir()
    (folder := tmp_path / "empty").mkdir()
    for program, given in {"fp8parity": "-m fp8parity", "pytest": f"-m pytest {' '.join(ENTRY)}", "python": ""}.items():
        (tools / program).write_text(f'#!/bin/sh\nexec "{sys.executable}" -P {given} "$@"\n')
        (tools / program).chmod(0o755)
    (folder / ".gitconfig").write_text("[user]\nname = t\nemail = t@t\n")
    (tools / "cp").symlink_to(shutil.which("cp") or "cp")
    (tmp_path / "fp8-parity").symlink_to(ROOT)  # the reader's clone
    ran = 0
    for block in (b for b in blocks(ROOT / "docs" / page) if "pip install" not in b.text):
        lines = block.page.read_text().splitlines()[: block.line]
        if block.language == "toml":
            file = folder / [*re.findall(r"`([\w/]+\.toml)`", "\n".join(lines))][-1]
            file.parent.mkdir(exist_ok=True)
            with file.open("a") as out:
                out.write(block.text)
        elif block.language == "sh":
            done = _run(["/bin/sh", "-ec", block.text], installed, folder, tools)
            assert done.returncode == 0, block.text + done.stdout + done.stderr
            ran += done.stdout.count("Accept: ")
    assert ran


def test_the_entry_point_asks_before_it_loads(tmp_path):
    assert entry.asks_for_suites(["--pyargs", "fp8parity.suites", "-m", "h100"], tmp_path)
    assert entry.asks_for_suites(["suites/convergence/test_loss_parity.py::test_loss_parity"], ROOT)
    assert not entry.asks_for_suites(["tests", "-k", "suites", "."], tmp_path)
