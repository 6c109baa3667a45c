"""The measurements that are shipped for predictions: how well they predict steps and blocks of models that they leave out."""

from __future__ import annotations

import pytest
from fp8parity.prediction.basis import Basis, basis
from fp8parity.prediction.calibration import Residual, held_out, residuals
from fp8parity.records import sets
from fp8parity.records.device import DeviceProfile
from fp8parity.records.schema import Throughput
from fp8parity.records.storage import gpu_slug
from processes import ROOT

SETS = sorted((ROOT / "golden" / "prediction").glob("*.zip"))


@pytest.fixture(scope="module", params=SETS, ids=lambda p: p.stem)
def shipped(request) -> tuple[str, Basis, list[Residual]]:
    records = sets.load([request.param])
    [profile] = [r for r in records if isinstance(r, DeviceProfile)]
    found = basis(records, profile.provenance.device)
    assert found is not None
    return request.param.stem, found, residuals(found, [r for r in records if isinstance(r, Throughput)])


def test_a_set_has_the_name_of_its_gpu_and_nothing_else(shipped):
    name, found, _ = shipped
    assert name == gpu_slug(found.gpu)
    assert {r.provenance.device for r in found.gemms} == {found.gpu}
    assert "te-current" in found.recipes


def test_the_interval_holds_at_least_nine_of_ten_cells(shipped):
    rows = held_out(shipped[2])
    assert rows and sum(r.covered for r in rows) >= 0.9 * len(rows)
