"""The example workflow and the examples of docs/cluster.md are valid, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from documents import ROOT, blocks
from fp8parity.planning.shards import COUNT, SCHEDULERS, shard_of

TEXT = (ROOT / ".github" / "workflows" / "parity.yml").read_text()
WORKFLOW = yaml.safe_load(TEXT)


def test_workflow_is_valid(tmp_path):
    for text, status in ((TEXT, 0), (TEXT.replace("runs-on: ubuntu-latest", "run-on: ubuntu-latest"), 1)):
        path = tmp_path / f"{status}.yml"
        path.write_text(text)
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
        assert subprocess.run(command, capture_output=True).returncode == status


def test_workflow_has_no_rights_and_pins_its_actions():
    used = re.findall(r"uses: (.*)", TEXT)
    assert WORKFLOW["permissions"] == {"contents": "read"} and used
    assert [a for a in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", a)] == []


def test_workflow_keeps_exit_statuses_of_pipes():
    """GitHub starts "bash" with -o pipefail, and its default shell without it."""
    assert WORKFLOW["defaults"] == {"run": {"shell": "bash"}}


PAGE = ROOT / "docs" / "cluster.md"
SCRIPTS = [b for b in blocks(PAGE) if "#SBATCH" in b.text]
JOBS = [b for b in blocks(PAGE) if b.language == "yaml"]
SBATCH = {"array", "gpus-per-node", "job-name", "nodes", "requeue", "time"}
"""Long options of sbatch that the example uses (https://slurm.schedmd.com/sbatch.html)."""


def test_slurm_script_is_well_formed_and_numbers_its_shards():
    [script] = [b.text for b in SCRIPTS]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script, re.M))
    assert len(options) == script.count("#SBATCH") and set(options) <= SBATCH
    first, last = map(int, options["array"].split("-"))
    array = {"MIN": str(first), "COUNT": str(last - first + 1), "STEP": "1"}
    shards = []
    for i in range(first, last + 1):
        variables = {f"SLURM_ARRAY_TASK_{name}": value for name, value in (array | {"ID": str(i)}).items()}
        shards.append(str(shard_of("auto", variables)))
    assert shards == [f"{i} of {len(shards)}" for i in range(1, len(shards) + 1)]
    assert "--parity-shard auto" in script


def test_kubernetes_job_is_indexed_and_tells_pods_the_count():
    [job] = [yaml.safe_load(b.text) for b in JOBS]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = {v["name"]: v["value"] for v in container["env"]}
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert pod["restartPolicy"] in ("Never", "OnFailure") and spec["completions"] == spec["parallelism"]
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert int(given[COUNT]) == spec["completions"] and "--parity-shard auto" in container["args"][0]
    found = [str(shard_of("auto", given | {"JOB_COMPLETION_INDEX": str(i)})) for i in range(spec["completions"])]
    assert found == [f"{i} of {spec['completions']}" for i in range(1, spec["completions"] + 1)]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda s: s.name)
def test_table_of_schedulers_names_every_variable(scheduler):
    text = PAGE.read_text()
    assert f"`{scheduler.index}`" in text and f"`{scheduler.count}`" in text
