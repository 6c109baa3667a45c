"""Throughput goldens: one a GPU and model, kept cell by cell, and never from times that say nothing."""

from __future__ import annotations

import pytest
from fp8parity.judging import speed_goldens
from timings import CELL, GPU, HERE, ROW, calm_but, made


@pytest.fixture
def golden(tmp_path):
    speed_goldens.store(tmp_path, made(), ROW)
    return speed_goldens.load(tmp_path)[GPU, "base", "training-step"]


def test_two_gpus_whose_names_make_one_path_do_not_share_a_golden(tmp_path, golden):
    assert speed_goldens.path_of(tmp_path, "NVIDIA-Made-Up", "base") == speed_goldens.path_of(tmp_path, GPU, "base")
    assert ("NVIDIA-Made-Up", "base", "training-step") not in speed_goldens.load(tmp_path)
    other = made(provenance=HERE.model_copy(update={"device": "NVIDIA-Made-Up"}))
    with pytest.raises(ValueError, match="base.json: is of NVIDIA Made Up, not of NVIDIA-Made-Up"):
        speed_goldens.store(tmp_path, other, ROW)


def test_a_golden_under_another_one_s_name_is_refused(tmp_path, golden):
    path = speed_goldens.path_of(tmp_path, GPU, "base")
    path.rename(path.with_name("small.json"))
    with pytest.raises(ValueError, match="small.json: is of base on NVIDIA Made Up; rename it"):
        speed_goldens.load(tmp_path)


def test_goldens_keep_their_other_cells_and_say_what_changed(tmp_path, golden):
    other = made(1.3, cell=CELL.model_copy(update={"recipe": "ao-rowwise"}))
    assert speed_goldens.store(tmp_path, other, ROW) == [f"{GPU}, base, ao-rowwise native: 1.300x"]
    [line] = speed_goldens.store(tmp_path, made(1.26), ROW)
    assert line.startswith(f"{GPU}, base, te-current native: 1.260x (was 1.200x, +0.060); ratio 1.2 -> 1.26 (+0.06); low ")
    assert line.endswith("; tokens_per_second 98304 -> 103219 (+4.92e+03)")
    stored = speed_goldens.load(tmp_path)[GPU, "base", "training-step"]
    assert {n: round(e.ratio, 3) for n, e in stored.cells.items()} == {"ao-rowwise native": 1.3, "te-current native": 1.26}


def test_a_damaged_golden_is_named(tmp_path, golden):
    path = speed_goldens.path_of(tmp_path, GPU, "base")
    path.write_text(path.read_text().replace('"pairs": 11', '"pairs": 12', 1))
    with pytest.raises(ValueError, match=r"base.json: its checksum does not match"):
        speed_goldens.load(tmp_path)


@pytest.mark.parametrize(
    ("run", "ci", "words"),
    [
        (made(), True, "CI never records"),
        (made(provenance=HERE.model_copy(update={"dirty": True})), False, "uncommitted changes"),
        (made(watch=None), False, "was not watched"),
        (made(watch=calm_but(throttled=["hardware slowdown"])), False, "hardware slowdown"),
        (made(watch=calm_but(busy_before=30)), False, "30% busy"),
        (made(pairs=7), False, "7 pairs"),
        (made(spread=0.03), False, r"interval of its ratio is 7\.7% wide, and the band is \+-5\.0%"),
    ],
)
def test_what_may_not_become_a_golden(tmp_path, monkeypatch, run, ci, words):
    if ci:
        monkeypatch.setenv("CI", "true")
    with pytest.raises(ValueError, match=f"throughput golden of te-current-base-native refused: .*{words}"):
        speed_goldens.store(tmp_path, run, ROW)
    assert not (tmp_path / "throughput").exists()


def test_a_golden_may_be_as_uncertain_as_one_side_of_its_band(tmp_path):
    [line] = speed_goldens.store(tmp_path, made(spread=0.019), ROW)
    [entry] = speed_goldens.load(tmp_path)[GPU, "base", "training-step"].cells.values()
    assert line.endswith("1.200x")
    assert 0.045 < (entry.high - entry.low) / entry.ratio <= ROW.band == 0.05
