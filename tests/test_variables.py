"""Environment variables in records: listed names with values, others with a hash, and no secret."""

from __future__ import annotations

from pathlib import Path

import torch
from fp8parity.records.cell import Cell, Execution
from fp8parity.report.summary import Evidence, command
from fp8parity.training import provenance
from fp8parity.training.provenance import NAMES, PREFIXES, recorded
from verdicts import verdict

SECRET = "hunter2-and-more"


def test_listed_variables_have_their_values():
    given = {
        "NVTE_FLASH_ATTN": "0",
        "NVIDIA_TF32_OVERRIDE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "ATEN_CPU_CAPABILITY": "avx2",
    }
    assert recorded(given | {"HOME": "/root", "HF_TOKEN": SECRET}) == given


def test_places_are_not_recorded():
    names = ("TORCHINDUCTOR_CACHE_DIR", "NVTE_X_PATH", "TORCHINDUCTOR_REDIS_URL", "TORCHINDUCTOR_REDIS_HOST")
    assert recorded(dict.fromkeys(names, f"redis://me:{SECRET}@host")) == {}


def test_a_record_holds_no_secret(monkeypatch):
    for name in ("NVTE_TOKEN", "HF_TOKEN", "TORCHINDUCTOR_REDIS_URL", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    made = provenance.collect(torch.device("cpu"), "-")
    assert SECRET not in made.model_dump_json()
    assert made.environment["OMP_NUM_THREADS"] == "3"
    assert made.environment["NVTE_TOKEN"].startswith("set, SHA-256 ")


def test_a_command_sets_only_what_is_known(trajectory):
    variables = recorded({"NVTE_TOKEN": SECRET, "NVTE_FLASH_ATTN": "0"})
    run = trajectory("te-current", provenance=trajectory().provenance.model_copy(update={"environment": variables}))
    judged = verdict("pass", cell=Cell(model="nano", recipe="te-current", execution=Execution.EMULATED))
    assert command([judged], Evidence(records=[run])).startswith("NVTE_FLASH_ATTN=0 pytest ")


def test_the_names_of_inductor_are_those_that_it_reads():
    text = (Path(torch.__file__).parent / "_inductor" / "config.py").read_text()
    assert [n for n in sorted(NAMES) if n.startswith("TORCHINDUCTOR_") and f'"{n}"' not in text] == []
    assert sum(n.startswith(PREFIXES) for n in NAMES) > 150
