"""docs/cluster.md: its scripts are well formed, and its schedulers number the shards that it says."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml
from documents import ROOT, blocks
from fp8parity.planning.shards import COUNT, SCHEDULERS, shard_of

PAGE = ROOT / "docs/cluster.md"
SCRIPTS = [b for b in blocks(PAGE) if b.text.startswith("#!")]
JOBS = [b for b in blocks(PAGE) if b.language == "yaml"]


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda b: b.id)
def test_a_script_is_well_formed(block):
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def test_there_are_such_scripts():
    assert any("--parity-shard auto" in b.text for b in SCRIPTS)
    assert any("--parity-shard auto" in b.text for b in JOBS)


def test_the_slurm_array_is_split_by_its_own_variables():
    [script] = [b.text for b in SCRIPTS if "--parity-shard auto" in b.text]
    first, last = map(int, some_match(r"#SBATCH --array=(\d+)-(\d+)", script))
    array = {
        "SLURM_ARRAY_TASK_MIN": str(first),
        "SLURM_ARRAY_TASK_COUNT": str(last - first + 1),
        "SLURM_ARRAY_TASK_STEP": "1",
    }
    found = [str(shard_of("auto", {**array, "SLURM_ARRAY_TASK_ID": str(i)})) for i in range(first, last + 1)]
    assert found == [f"{i} of {len(found)}" for i in range(1, len(found) + 1)]


@pytest.mark.parametrize("block", [b for b in JOBS if "--parity-shard auto" in b.text], ids=lambda b: b.id)
def test_a_kubernetes_job_tells_its_pods_the_number_of_shards(block):
    job = yaml.safe_load(block.text)
    spec = job["spec"]
    [container] = spec["template"]["spec"]["containers"]
    given = {v["name"]: v["value"] for v in container["env"]}
    assert (job["kind"], spec["completionMode"], spec["template"]["spec"]["restartPolicy"]) == (
        "Job",
        "Indexed",
        "Never",
    )
    found = [str(shard_of("auto", given | {"JOB_COMPLETION_INDEX": str(i)})) for i in range(spec["completions"])]
    assert found == [f"{i} of {spec['completions']}" for i in range(1, spec["completions"] + 1)]
    assert int(given[COUNT]) == spec["completions"]
    words = shlex.split(container["args"][0])
    assert words[0] == "pytest"
    assert words[words.index("--parity-shard") + 1] == "auto"


def test_the_table_names_every_scheduler_and_its_variables():
    text = PAGE.read_text()
    for s in SCHEDULERS:
        assert f"`{s.index}`" in text and f"`{s.count}`" in text, s.name


def some_match(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return found.groups()
