"""The documents: links, files and tables are right, pages are short, workflow and cluster examples work."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import fp8parity
import pytest
import yaml
from documents import FENCE, LANGUAGES, PAGES, ROOT, blocks, rows
from fp8parity.cli import main
from fp8parity.judging.references import store
from fp8parity.planning import COUNT, SCHEDULERS, shard_of
from fp8parity.records import cell
from fp8parity.report import sentence

USER = [page for page in PAGES if page.parent in (ROOT / "docs", ROOT / "lab" / "docs")]
REFERENCE = runpy.run_path(str(ROOT / "docs" / "reference.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_files_of_a_page_exist(page):
    assert faults(page) == []


def faults(page: Path) -> list[str]:
    """Return prompts, strange fences, dead links, and named files that do not exist."""
    text = page.read_text()
    found = [f"{b.id}: fence {b.language!r}" for b in blocks(page) if b.language not in LANGUAGES | {"indented"}]
    found += [f"prompt: {line}" for line in text.splitlines() if re.match(r"\s*\$ ", line)]
    prose = FENCE.sub("", text)
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose):
        target = page.parent / path if path else page
        if not path.startswith("http") and not (target.exists() and (not anchor or anchor in anchors(target))):
            found.append(f"link: {path}#{anchor}")
    named = re.findall(r"`((?:docs|golden|tests|suites|lab|fixtures)/[\w./-]+\.(?:md|py|zip|toml|csv))`", prose)
    named = [name for name in named if (ROOT / name.partition("/")[0]).exists()]  # the lab may be deleted
    return found + [f"no such file: {name}" for name in named if not (ROOT / name).exists()]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", USER, ids=lambda p: str(p.relative_to(ROOT)))
def test_generated_tables_of_a_page_are_current(page):
    """``python docs/reference.py`` writes them."""
    text = page.read_text()
    assert REFERENCE["current"](page) == text
    named = {name for name, made in REFERENCE["BLOCKS"].items() if made.page == str(page.relative_to(ROOT))}
    assert {name for name, _ in REFERENCE["BLOCK"].findall(text)} == named


def test_pages_of_red_verdicts_exist():
    for page in sentence.PAGES.values():
        path, _, anchor = page.partition("#")
        assert anchor in {"", *anchors(ROOT / path)}, page


RECORDS = ROOT / "golden" / "records"


PACKAGES = ("torch", "transformer-engine", "torchao", "transformers", "megatron-core")


def stacks(path: Path) -> set[tuple[str, ...]]:
    """Return Python and the packages of each record of a set."""
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.endswith(".json") and not n.startswith("manifest")]
        made = [json.loads(archive.read(name))["provenance"] for name in names]
    return {(m["python"].rpartition(".")[0], *(m["packages"].get(p, "-") for p in PACKAGES)) for m in made}


def test_table_of_versions_has_each_stack_of_a_record():
    table = [tuple(cells) for cells in rows("versions.md") if len(cells) > 6 and cells[0].startswith("3.")]
    sets = [p for folder in ("golden/records", "examples", "lab/records") for p in (ROOT / folder).rglob("*.zip")]
    assert set[tuple[str, ...]]().union(*map(stacks, sets)) == {row[:6] for row in table if row[-1] != "-"}


def test_table_of_schemas_has_those_of_this_version():
    assert [fp8parity.__version__, str(cell.SCHEMA), str(store.GoldenFile.model_fields["schema_version"].default)] in [
        cells[:3] for cells in rows("versions.md")
    ]


@pytest.mark.slow
def test_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "fixtures")}
    )
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "index.html").read_text()
    pages = {str(p.relative_to(ROOT / "docs").with_suffix(".html")) for p in (ROOT / "docs").rglob("*.md")}
    assert [page for page in pages - {"index.html"} if f'href="{page}"' not in index] == []
    names = (tmp_path / "api.html").read_text()
    assert [name for name in fp8parity.__all__ if name != "__version__" and f"fp8parity.{name}" not in names] == []
    assert "https://" not in (tmp_path / "search.html").read_text().partition("<body")[0]


def test_first_table_is_that_of_the_records(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["judge", str(RECORDS / "micro-epyc.zip"), "--golden-dir", str(ROOT / "golden")]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if " micro " in line]
    assert len(rows) == 10
    assert [row for row in rows if row not in (ROOT / "README.md").read_text().splitlines()] == []


WORKFLOWS = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
SCHEMAS = {
    "vendor.github-workflows": [f".github/workflows/{name}" for name in WORKFLOWS],
    "vendor.github-actions": ["action.yml"],
    "vendor.dependabot": [".github/dependabot.yml"],
    "vendor.github-issue-forms": [".github/ISSUE_TEMPLATE/bug.yml"],
    "vendor.github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": ["CITATION.cff"],
}


@pytest.mark.parametrize(("schema", "names"), SCHEMAS.items(), ids=SCHEMAS)
def test_files_of_github_follow_their_schemas(schema, names):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *(str(ROOT / n) for n in names)]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_workflows_have_no_rights_and_pin_their_actions():
    for name, text in WORKFLOWS.items():
        used, workflow = re.findall(r"uses: (.*)", text), yaml.safe_load(text)
        assert workflow["permissions"] in ({}, {"contents": "read"}) and used, name
        assert [a for a in used if not re.fullmatch(r"(actions|pypa)/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", a)] == []
        # GitHub starts "bash" with -o pipefail, and its default shell without it.
        assert workflow["defaults"] == {"run": {"shell": "bash"}}, name


PAGE = ROOT / "docs" / "cluster.md"
SCRIPT, JOB = ((ROOT / "docs" / "examples" / name).read_text() for name in ("slurm.sh", "kubernetes.yaml"))
SBATCH = {"array", "gpus-per-node", "job-name", "nodes", "requeue", "time"}
"""Long options of sbatch that the example uses (https://slurm.schedmd.com/sbatch.html)."""


def test_slurm_script_is_well_formed_and_numbers_its_shards():
    subprocess.run(["bash", "-n"], input=SCRIPT, text=True, check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SCRIPT, re.M))
    assert len(options) == SCRIPT.count("#SBATCH") and set(options) <= SBATCH
    first, last = map(int, options["array"].split("-"))
    array = {"MIN": str(first), "COUNT": str(last - first + 1), "STEP": "1"}
    shards = []
    for i in range(first, last + 1):
        variables = {f"SLURM_ARRAY_TASK_{name}": value for name, value in (array | {"ID": str(i)}).items()}
        shards.append(str(shard_of("auto", variables)))
    assert shards == [f"{i} of {len(shards)}" for i in range(1, len(shards) + 1)]
    assert "--parity-shard auto" in SCRIPT


def test_kubernetes_job_is_indexed_and_tells_pods_the_count():
    job = yaml.safe_load(JOB)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = {v["name"]: v["value"] for v in container["env"]}
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert pod["restartPolicy"] in ("Never", "OnFailure") and spec["completions"] == spec["parallelism"]
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert int(given[COUNT]) == spec["completions"] and "--parity-shard auto" in container["args"][0]
    found = [str(shard_of("auto", given | {"JOB_COMPLETION_INDEX": str(i)})) for i in range(spec["completions"])]
    assert found == [f"{i} of {spec['completions']}" for i in range(1, spec["completions"] + 1)]


def test_table_of_schedulers_names_every_variable():
    text, variables = PAGE.read_text(), {v for s in SCHEDULERS for v in (s.index, s.count)}
    assert [name for name in variables if f"`{name}`" not in text] == []
