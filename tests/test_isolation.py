"""A failed capture of one cell does not affect the next, and a run frees its tensors before the reset."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from fp8parity.training import hardware as isolation
from fp8parity.training import provenance
from fp8parity.training.hardware import reset_state
from fp8parity.training.provenance import NAMES, PREFIXES, recorded

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures need a GPU")


def failed_capture() -> None:
    """Capture a step that draws random numbers and then waits for the device, which a capture cannot."""
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capture"), torch.cuda.graph(graph):
        torch.rand(4, device="cuda").sum().item()


@ON_GPU
def test_a_failed_capture_breaks_random_numbers():
    """If this fails, torch ends a failed capture, and ``reset_state`` needs no new state of the generator."""
    failed_capture()
    with pytest.raises(RuntimeError, match="^Offset increment outside graph capture"):
        torch.rand(4, device="cuda")
    reset_state()


@ON_GPU
def test_random_numbers_after_a_failed_capture_follow_the_seed():
    torch.manual_seed(7)
    expected = torch.rand(4, device="cuda")
    failed_capture()
    reset_state()
    torch.manual_seed(7)
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    replayed = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed += torch.rand(4, device="cuda")
    graph.replay()
    assert bool((replayed > 0).all())


def test_an_isolated_run_is_freed_before_the_reset(monkeypatch):
    alive: list[bool] = []

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    @isolation.isolated()
    def run() -> int:
        local = Held()
        held.append(weakref.ref(local))
        return 7

    monkeypatch.setattr(isolation, "reset_state", lambda: alive.append(held[0]() is not None))
    assert run() == 7 and alive == [False]


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


def test_the_names_of_inductor_are_those_that_it_reads():
    text = (Path(torch.__file__).parent / "_inductor" / "config.py").read_text()
    assert [n for n in sorted(NAMES) if n.startswith("TORCHINDUCTOR_") and f'"{n}"' not in text] == []
    assert sum(n.startswith(PREFIXES) for n in NAMES) > 150
