"""The measurements that are shipped for predictions: how well they predict steps and blocks of models that they leave out."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.prediction.basis import Basis, basis
from fp8parity.prediction.calibration import Residual, held_out, residuals
from fp8parity.records import sets
from fp8parity.records.device import DeviceProfile
from fp8parity.records.schema import Throughput
from fp8parity.records.storage import gpu_slug
from processes import ROOT

SETS = sorted((ROOT / "golden" / "prediction").glob("*.zip"))


def loaded(path: Path) -> tuple[Basis, list[Residual]]:
    records = sets.load([path])
    [profile] = [r for r in records if isinstance(r, DeviceProfile)]
    found = basis(records, profile.provenance.device)
    assert found is not None
    return found, residuals(found, [r for r in records if isinstance(r, Throughput)])


@pytest.mark.parametrize("path", SETS, ids=lambda p: p.stem)
def test_a_set_has_the_name_of_its_gpu_and_nothing_else(path):
    found, _ = loaded(path)
    assert path.stem == gpu_slug(found.gpu)
    assert {r.provenance.device for r in found.gemms} == {found.gpu}
    assert "te-current" in found.recipes


def test_the_interval_holds_nine_of_ten_cells():
    """Over all GPUs, as the command counts them. Of ao-tensorwise only the GEMMs of Llama 3 8B were timed."""
    rows = held_out([r for path in SETS for r in loaded(path)[1]])
    assert len(rows) >= 80
    beyond = {(r.cell.recipe, r.cell.work.shape.name) for r in rows if r.extrapolated}
    assert beyond == {("ao-tensorwise", "base"), ("ao-tensorwise", "small")}
    assert sum(r.covered for r in rows) >= 0.9 * len(rows)
    assert all(abs(r.error) < 0.05 for r in rows)
