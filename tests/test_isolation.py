"""A failed capture of one cell does not affect the next, and a run frees its tensors before the reset."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fp8parity import runner
from fp8parity.distributed import launch
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement
from fp8parity.runner import Runner, Settings
from fp8parity.training import hardware as isolation
from fp8parity.training import hardware as locks
from fp8parity.training import provenance
from fp8parity.training.hardware import GPU, Hardware, device_of, reset_state
from fp8parity.training.provenance import NAMES, PREFIXES, recorded
from fp8parity.workload.presets import presets
from sessions import cell

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures need a GPU")


def failed_capture() -> None:
    """Capture a step that draws random numbers and then waits for the device, which a capture cannot."""
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capture"), torch.cuda.graph(graph):
        torch.rand(4, device="cuda").sum().item()


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


HERE = Hardware("h100", "cpu", (9, 0))


def visible(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
    """CUDA shows these GPUs, in this order."""
    made = [SimpleNamespace(uuid=uuid, total_memory=80) for uuid in uuids]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: made[int(str(device).removeprefix("cuda:"))]
    )


def test_workers_alternate_between_gpus():
    assert [device_of(f"gw{i}", 2) for i in range(5)] == [0, 1, 0, 1, 0]
    assert [device_of(f"gw{i}", 8) for i in (0, 7, 8, 11)] == [0, 7, 0, 3]
    assert device_of("", 4) == 0


def test_ranks_take_gpus_in_one_order(monkeypatch):
    """With CUDA_VISIBLE_DEVICES=0,1 in one process and 1,0 in another one, each once took the GPU that the other one waited for."""
    taken = []
    for order in ("ab", "ba"):
        visible(monkeypatch, *order)
        taken.append([gpu.name for gpu in Hardware("h100", "cuda:1", (9, 0)).gpus(2)])
    assert taken == [["gpu-a", "gpu-b"], ["gpu-a", "gpu-b"]]


@pytest.mark.parametrize(
    ("device", "ranks", "visible", "given"),
    [
        ("cuda:2", 1, None, "2"),
        ("cuda:1", 1, "3, GPU-5", "GPU-5"),
        ("cuda", 1, "3,5", "3"),
        ("cuda:1", 2, "3,5", "3,5"),
        ("cpu", 1, None, None),
    ],
)
def test_single_rank_sees_the_gpu_of_its_session(session, monkeypatch, device, ranks, visible, given):
    """Four workers on four GPUs once ran their single ranks all on the first one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    spec = replace(session.spec(cell("bf16", "native", "nano")), device=torch.device(device), ranks=ranks)
    assert launch._environment(spec).get("CUDA_VISIBLE_DEVICES") == given


@pytest.mark.parametrize("fails", [False, True], ids=["measures", "fails"])
def test_memory_is_free_before_the_lock_is(fails, tmp_path, monkeypatch):
    """A report keeps the exception of a failed test. Its traceback once kept the tensors of the run."""
    events: list[str] = []
    tensors: list[weakref.ref[torch.Tensor]] = []

    @contextmanager
    def held(folder: Path, gpu: GPU, use: locks.Use) -> Iterator[None]:
        try:
            yield
        finally:
            events.append(f"let go, {sum(t() is not None for t in tensors)} tensors")

    def measure(spec: object) -> tuple[list[Measurement], list[str]]:
        big = torch.ones(8)
        tensors.append(weakref.ref(big))
        if fails:
            try:
                raise ValueError("the first error")
            except ValueError:
                raise RuntimeError("out of memory") from None
        return [Measurement(metric="m", where="w", value=float(big[0]))], []

    monkeypatch.setattr(locks, "held", held)
    monkeypatch.setattr(Hardware, "gpus", lambda self, ranks: [GPU("gpu-0", 80.0)])
    monkeypatch.setattr(Hardware, "current", lambda self: nullcontext())
    for module in (runner, locks):
        monkeypatch.setattr(module, "reset_state", lambda: events.append("reset"))
    monkeypatch.setattr(
        runner, "numerics_check", lambda *_: SimpleNamespace(measure=measure, use=locks.SHARED, timed=False)
    )
    made = Runner(Settings(tmp_path), HERE, "s", presets())
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED)
    with pytest.raises(RuntimeError, match="out of memory") if fails else nullcontext() as kept:
        made.measure("codes", cell)
    assert events == ["reset", "let go, 0 tensors"]
    assert bool(kept) is fails
