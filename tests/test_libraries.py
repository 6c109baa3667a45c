"""The libraries below the packages: how they are read, and how they group and blame records."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import two_sides
from fp8parity.judging.completeness import missing
from fp8parity.judging.references.timed import Versions
from fp8parity.records.manifest import Manifest, Selected
from fp8parity.records.provenance import is_library
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import machines, merge, titles
from fp8parity.records.storage import name_of
from fp8parity.trainers.runs import installed_for
from fp8parity.training import installed, provenance
from two_sides import compared

OLD, NEW = {"cuDNN": "9.10.2", "NCCL": "2.27.5"}, {"cuDNN": "9.13.0", "NCCL": "2.27.5"}
SEVERAL = "several changed, so none can be blamed alone"


@pytest.fixture
def having(runs, trajectory):
    """Return runs with these libraries, of one version of torch."""

    def made(libraries: dict[str, str], version: str = "2.12.0", **changes: float) -> list[Trajectory]:
        source = two_sides.provenance(trajectory, version).model_copy(update={"libraries": libraries})
        return runs(version, provenance=source, **changes)

    return made


def test_first_line_blames_cudnn_that_changed_alone(having):
    found = compared(having(OLD), having(NEW, control=0.02))
    assert found.code == 1
    assert found.sentence.startswith("BF16 changed: bf16-nano-native loss +2")
    assert found.sentence.endswith("(cuDNN 9.10.2 -> 9.13.0).")
    assert [(u.name, u.old, u.new) for u in found.updates] == [("cuDNN", "9.10.2", "9.13.0")]


def test_first_line_blames_none_of_several(having):
    found = compared(having(OLD), having(NEW, "2.13.0", recipe=0.02))
    assert found.sentence.endswith(f"(torch 2.12.0 -> 2.13.0, cuDNN 9.10.2 -> 9.13.0; {SEVERAL}).")
    assert SEVERAL not in compared(having(OLD), having(NEW, "2.13.0")).sentence, "nothing changed, so nothing is blamed"


@pytest.mark.parametrize("side", ["OLD", "NEW"])
def test_library_of_one_side_is_not_known_and_no_change(having, side):
    sides = [having({} if side == name else NEW, control=0.02 * (name == "NEW")) for name in ("OLD", "NEW")]
    found = compared(*sides)
    assert found.updates == []
    assert found.sentence.endswith(f"(the same packages and machine; {side} did not record the libraries).")


def test_runs_of_two_cudnns_are_two_machines(having):
    both = machines([*having(OLD), *having(NEW)])
    assert titles(both) == ["EPYC (cuDNN 9.10.2)", "EPYC (cuDNN 9.13.0)"]
    with pytest.raises(ValueError, match="^OLD holds EPYC with more than one cuDNN; put"):
        compared([*having(OLD), *having(NEW)], having(NEW))


def test_a_session_whose_process_loaded_another_cudnn_is_whole(having):
    """Workers load Transformer Engine, which may bring another cuDNN, and the process of the manifest does not."""
    found, session = having(NEW), having(OLD)[0].provenance
    made = Selected(cell=found[0].cell.id, test="t", outcome="passed", records=[name_of(r) for r in found])
    times: Any = {"session": "s", "options": [], "started": "a", "ended": "b", "status": "ok"}
    assert missing([Manifest(**times, provenance=session, selected=[made])], found) == []


def test_old_records_join_the_only_machine_with_libraries(having, tmp_path):
    old, new = having({}), having(NEW)
    (machine,) = machines([*old, *new])
    assert dict(machine.environment.libraries) == NEW
    assert len(merge((tmp_path, r) for r in [*old, *new])) == len(old), "equal results are kept once"
    three = titles(machines([*old, *having(OLD), *new]))
    assert three == [f"EPYC (cuDNN {name})" for name in ("not known", "9.10.2", "9.13.0")]


def test_times_are_pooled_unless_a_known_library_changed():
    unknown, old, new = (
        Versions(packages={"torch": "1"}, cuda=None, driver=None, libraries=found) for found in ({}, OLD, NEW)
    )
    assert unknown.equal(new) and old.equal(unknown) and not old.equal(new)
    assert not unknown.equal(unknown.model_copy(update={"driver": "580"}))


def test_loaded_libraries_come_before_wheels(monkeypatch):
    told = SimpleNamespace(
        cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 27, 5, b""))),
        _C=SimpleNamespace(_nccl_version=None, _cudnn=SimpleNamespace(getRuntimeVersion=lambda: (9, 10, 2))),
    )
    monkeypatch.setattr(installed.importlib, "import_module", lambda name: told)
    wheels = {
        "nvidia-cudnn-cu12": "9.1",
        "nvidia-cudnn-cu13": "9.5",
        "nvidia-cublas": "13.1",
        "nvidia-nccl-cu13": "2.1",
    }
    found = installed.libraries(True, wheels | {"nvidia-curand": "10", "nvidia-ml-py": "1", "numpy": "2"})
    none = dict.fromkeys(("cudnn-frontend", "flash-attn", "flash-attn-3"), "none")
    assert found == {"cuDNN": "9.10.2", "cuBLAS": "13.1", "NCCL": "2.27.5", "nvidia-curand": "10", **none}
    assert all(map(is_library, found))


def test_wheels_are_named_where_torch_tells_nothing(monkeypatch):
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    wheels = {"nvidia-cudnn-cu12": "9.1", "nvidia-cudnn-cu13": "9.5", "flash-attn": "2.8.3"}
    found = installed.libraries(True, wheels)
    assert (found["cuDNN"], found["flash-attn"], "NCCL" in found) == ("9.1 + 9.5", "2.8.3", False)


def test_cpu_names_the_libraries_of_its_kernels():
    found = provenance.libraries(False)
    assert found and found.keys() <= {"oneDNN", "MKL"} and all(text[0].isdigit() for text in found.values())


@pytest.mark.slow
def test_trainer_records_the_libraries_of_its_own_interpreter():
    packages, libraries = installed_for(sys.executable, "cpu", (("FP8PARITY_X", "1"),))
    assert libraries == provenance.libraries(False)
    assert packages == installed.packages()
    with pytest.raises(ValueError, match="false cannot list its packages: "):
        installed_for("false", "cpu", ())
