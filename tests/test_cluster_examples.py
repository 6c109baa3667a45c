"""The examples of docs/cluster.md for Slurm and Kubernetes: they parse, their options exist, and they fit the command that they run."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from documents import ROOT, blocks

PAGE = ROOT / "docs" / "cluster.md"
SBATCH = {
    "array",
    "cpus-per-task",
    "exclusive",
    "gpus-per-node",
    "job-name",
    "nodes",
    "ntasks-per-node",
    "requeue",
    "time",
}
"""Long options of sbatch that the examples use (https://slurm.schedmd.com/sbatch.html)."""
SCRIPTS = [b for b in blocks(PAGE) if "#SBATCH" in b.text]
JOBS = [b for b in blocks(PAGE) if b.language == "yaml"]


def script_faults(text: str) -> list[str]:
    """What is wrong with a Slurm script: bash cannot read it, an option is unknown, or its size is not one of Slurm's."""
    read = subprocess.run([shutil.which("bash") or "bash", "-n"], input=text, capture_output=True, text=True)
    found = [read.stderr.strip()] if read.returncode else []
    options = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.M)
    found += [f"unknown option {name}" for name, _ in options if name not in SBATCH]
    found += ["an #SBATCH line that is no option"] * (text.count("#SBATCH") - len(options))
    given = dict(options)
    if not re.fullmatch(r"\d\d:\d\d:\d\d", given.get("time", "")):
        found.append("no time limit")
    shards = "--parity-shard auto" in text
    if shards != ("array" in given):
        found.append("--parity-shard auto and --array go together")
    return found


def job_faults(job: dict[str, Any]) -> list[str]:
    """What is wrong with an Indexed Job and the command in it."""
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    command, env = container["args"][0], {e["name"]: e["value"] for e in container["env"]}
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    volumes = {v["name"]: v for v in pod["volumes"]}
    gpus, asked = container["resources"]["limits"]["nvidia.com/gpu"], re.search(r"-k x(\d+)", command)
    shared = any(
        path == "/dev/shm" and volumes.get(name, {}).get("emptyDir", {}).get("medium") == "Memory"
        for name, path in mounts.items()
    )
    checks = {
        "it is no Job of batch/v1": (job["apiVersion"], job["kind"]) == ("batch/v1", "Job"),
        "it is not indexed": spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"],
        "pods of a Job restart never or on failure": pod["restartPolicy"] in ("Never", "OnFailure"),
        "FP8PARITY_SHARDS is not the number of completions": env.get("FP8PARITY_SHARDS") == str(spec["completions"]),
        "the shard is not taken from the index": "--parity-shard auto" in command
        and "$JOB_COMPLETION_INDEX" in command,
        "a volume is mounted that there is not": set(mounts) <= set(volumes),
        "fewer GPUs than ranks": asked is None or gpus >= int(asked[1]),
        "ranks without shared memory": "suites/distributed" not in command or shared,
    }
    return [fault for fault, sound in checks.items() if not sound]


@pytest.mark.parametrize("block", [pytest.param(b, id=b.id) for b in SCRIPTS])
def test_slurm_scripts(block):
    assert script_faults(block.text) == []


@pytest.mark.parametrize("block", [pytest.param(b, id=b.id) for b in JOBS])
def test_kubernetes_jobs(block):
    assert job_faults(yaml.safe_load(block.text)) == []


def test_both_kinds_of_work_have_an_example():
    for found in (SCRIPTS, JOBS):
        assert {"suites/distributed" in b.text for b in found} == {True, False}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("--exclusive", "--exclusiv", "unknown option exclusiv"),
        ("--time=01:00:00", "--time=1h", "no time limit"),
        ("#SBATCH --nodes", "#SBATCH -nodes", "an #SBATCH line that is no option"),
        ('"records-ranks-$SLURM_JOB_ID"', '"records-ranks-$SLURM_JOB_ID', "unexpected EOF"),
        ("suites/distributed", "suites/distributed --parity-shard auto", "--parity-shard auto and --array go together"),
    ],
)
def test_a_wrong_script_is_seen(old, new, fault):
    text = SCRIPTS[-1].text
    assert old in text
    assert fault in " ".join(script_faults(text.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("completions: 2", "completions: 3", "it is not indexed"),
        ('value: "2"', 'value: "4"', "FP8PARITY_SHARDS is not the number of completions"),
        ("nvidia.com/gpu: 2", "nvidia.com/gpu: 1", "fewer GPUs than ranks"),
        ("mountPath: /dev/shm", "mountPath: /shm", "ranks without shared memory"),
        ("restartPolicy: Never", "restartPolicy: Always", "pods of a Job restart never or on failure"),
        ("- name: shared-memory", "- name: shm", "a volume is mounted that there is not"),
    ],
)
def test_a_wrong_job_is_seen(old, new, fault):
    text = JOBS[-1].text
    assert old in text
    assert fault in job_faults(yaml.safe_load(text.replace(old, new)))
