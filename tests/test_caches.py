"""A folder of compiled kernels for several sessions: by versions, asked for, and hidden from the check ``autotune``."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest
from fp8parity.gate import caches
from fp8parity.training import variables


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in caches.VARIABLES:
        monkeypatch.setenv(name, "x")  # put back afterwards, also if the test sets it anew
        monkeypatch.delenv(name)


def test_kernels_are_kept_below_the_folder(tmp_path: Path):
    part = caches.use(tmp_path)
    assert part == tmp_path / caches.key()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(part / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == str(part / "triton")
    assert caches.use(tmp_path) == part  # a worker inherits the variables


def test_another_version_has_another_part(monkeypatch):
    before = caches.key()
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99" if name == "triton" else real(name))
    assert caches.key() != before


def test_a_folder_that_is_set_already_is_not_replaced(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    with pytest.raises(ValueError, match=f"--parity-compile-cache {tmp_path}: TRITON_CACHE_DIR is set already"):
        caches.use(tmp_path)


def test_the_check_autotune_takes_binaries_of_an_earlier_session_and_no_choice(tmp_path: Path):
    from fp8parity.training.inductor import Configurations

    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # the import sets it, and a session asks for its folder before
    caches.use(tmp_path)
    inductor, triton = (os.environ[name] for name in caches.VARIABLES)
    with Configurations():
        assert not os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
        assert os.environ["TRITON_CACHE_DIR"] == triton
    assert [os.environ[name] for name in caches.VARIABLES] == [inductor, triton]


def test_the_folder_is_not_recorded(tmp_path: Path):
    """Otherwise two sets that differ only in it could not be compared."""
    before = variables.recorded(os.environ)
    caches.use(tmp_path)
    recorded = variables.recorded(os.environ)
    assert {k: v for k, v in recorded.items() if not k.endswith("_DIR")} == {
        k: v for k, v in before.items() if not k.endswith("_DIR")
    }
    assert str(tmp_path) not in str(recorded)
