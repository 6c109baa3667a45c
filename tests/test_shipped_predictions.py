"""The measurements that are shipped for predictions: how well they predict steps and blocks of models that they leave out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from fp8parity import cli
from fp8parity.prediction.basis import Basis, basis
from fp8parity.prediction.calibration import held_out
from fp8parity.prediction.residuals import Residual, Size, residuals
from fp8parity.records import sets
from fp8parity.records.gemms import GemmTimes
from fp8parity.records.schema import AnyRecord, Throughput
from fp8parity.records.storage import gpu_slug
from fp8parity.records.times import DeviceProfile
from processes import ROOT

SETS = sorted((ROOT / "golden" / "prediction").glob("*.zip"))


@cache
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


def small_of_torchao(record: AnyRecord) -> bool:
    return (
        isinstance(record, GemmTimes)
        and record.cell.recipe.startswith("ao-")
        and record.cell.model in ("small", "base")
    )


@pytest.fixture(scope="module")
def far_sets(tmp_path_factory) -> list[Path]:
    """The sets without the GEMMs of torchao's recipes at ``small`` and ``base``."""
    folder = tmp_path_factory.mktemp("far")
    for path in SETS:
        records = sets.load([path])
        kept = [r for r in records if not small_of_torchao(r)]
        assert len(records) - len(kept) == 6
        sets.save(kept, folder / path.name)
    return sorted(folder.iterdir())


def test_the_interval_holds_nine_of_ten_cells():
    """Over all GPUs, as the command counts them."""
    rows = held_out([r for path in SETS for r in loaded(path)[1]])
    assert len(rows) >= 96 and not any(r.residual.extrapolated for r in rows)
    assert sum(abs(r.error) < 0.05 for r in rows) >= 94
    assert all(abs(r.error) < 0.07 for r in rows)
    assert sum(r.covered for r in rows) >= 0.9 * len(rows)


def test_the_interval_of_far_cells_holds_nine_of_ten(far_sets):
    rows = held_out([r for path in far_sets for r in loaded(path)[1]])
    far = [r for r in rows if r.residual.extrapolated]
    near = [r for r in rows if not r.residual.extrapolated]
    assert len(near) >= 84 and len(far) >= 12
    beyond = {(r.cell.recipe, r.cell.work.shape.name, *(e.size for e in r.residual.excesses)) for r in far}
    assert beyond == {
        (r, m, Size.FEATURES) for r in ("ao-tensorwise", "ao-rowwise", "ao-rowwise-gw-hp") for m in ("base", "small")
    }
    assert sum(abs(r.error) < 0.05 for r in near) >= len(near) - 2
    for some in (near, far):
        assert sum(r.covered for r in some) >= 0.9 * len(some)


def test_the_command_says_whose_errors_widen_an_interval(far_sets, capsys):
    """Of six extrapolated cells of base. A model of which every linear is near has no such line."""
    cells = r"6 measured cells of 1 model that are extrapolated in features"
    words = rf"The interval of an extrapolated prediction holds the spread of {cells} \(\d\.\d%\)\."
    for model, said in (("small", 1), ("1b", 0)):
        assert cli.main(["predict", model, "--gpu", "h200", "--records", *map(str, far_sets)]) == 0
        assert len(re.findall(words, capsys.readouterr().out)) == said


def test_bf16_has_no_gain_and_an_ambiguous_gpu_is_refused(capsys):
    assert cli.main(["predict", "1b", "--gpu", "h100", "--recipe", "bf16"]) == 0
    assert "1.000x [1.000, 1.000]" in capsys.readouterr().out
    for name, words in (("nvidia", "may be nvidia-h100-80gb-hbm3 or nvidia-h200"), ("", "unknown GPU ''")):
        assert cli.main(["predict", "1b", "--gpu", name]) == 2
        assert words in capsys.readouterr().err
