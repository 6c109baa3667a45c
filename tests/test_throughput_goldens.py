"""Throughput goldens: one a GPU and model, kept cell by cell, and never from times that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.judging.references import sessions, store
from fp8parity.judging.references.timed import SpeedEntry, SpeedGolden, Versions, versioned
from fp8parity.records import storage
from fp8parity.records.schema import Throughput
from timings import CALM, CELL, GPU, HERE, ROW, calm_but, made

UPGRADED = HERE.model_copy(update={"packages": {**HERE.packages, "torch": "3.0"}})
HOT = calm_but(sm_clocks=[1500] * 22, power_capped=0.5)


@pytest.fixture
def golden(tmp_path):
    sessions.store(tmp_path, made(), ROW)
    return store.load(tmp_path, SpeedGolden)[GPU, "base", "training-step"]


def test_two_gpus_whose_names_make_one_path_do_not_share_a_golden(tmp_path, golden):
    assert (
        speed_goldens.path_of(tmp_path, "NVIDIA-Made-Up", "base")
        == tmp_path / SpeedGolden.model_construct(gpu=GPU, model="base").path
    )
    assert ("NVIDIA-Made-Up", "base", "training-step") not in store.load(tmp_path, SpeedGolden)
    other = made(provenance=HERE.model_copy(update={"device": "NVIDIA-Made-Up"}))
    with pytest.raises(ValueError, match="base.json: is of NVIDIA Made Up, not of NVIDIA-Made-Up"):
        sessions.store(tmp_path, other, ROW)


def test_a_golden_under_another_one_s_name_is_refused(tmp_path, golden):
    path = tmp_path / SpeedGolden.model_construct(gpu=GPU, model="base").path
    path.rename(path.with_name("small.json"))
    with pytest.raises(ValueError, match="small.json: is of base on NVIDIA Made Up; rename it"):
        store.load(tmp_path, SpeedGolden)


def test_goldens_keep_their_other_cells_and_say_what_changed(tmp_path, golden):
    other = made(1.3, cell=CELL.model_copy(update={"recipe": "ao-rowwise"}))
    assert sessions.store(tmp_path, other, ROW) == [f"{GPU}, base, ao-rowwise native: 1.300x"]
    [line] = sessions.store(tmp_path, made(1.26), ROW)
    assert line.startswith(
        f"{GPU}, base, te-current native: 1.260x (was 1.200x, +0.060); ratio 1.2 -> 1.26 (+0.06); low "
    )
    assert line.endswith("; tokens_per_second 98304 -> 103219 (+4.92e+03)")
    stored = store.load(tmp_path, SpeedGolden)[GPU, "base", "training-step"]
    assert {n: round(e.ratio, 3) for n, e in stored.cells.items()} == {
        "ao-rowwise native": 1.3,
        "te-current native": 1.26,
    }


def slower(factor: float) -> dict[str, object]:
    """Times of a machine on which both sides take longer."""
    record = made(1.22)
    return {name: [t * factor for t in getattr(record, name)] for name in ("bf16_seconds", "recipe_seconds")}


def stored_after(folder: Path, *records: Throughput) -> SpeedEntry:
    """The entry after these records were stored one after the other."""
    for record in records:
        sessions.store(folder, record, ROW)
    [entry] = store.load(folder, SpeedGolden)[GPU, "base", "training-step"].cells.values()
    return entry


def test_two_starts_of_a_machine_make_one_golden(tmp_path):
    """The numbers are geometric means in which each session counts once, and the interval holds those of all sessions."""
    first, second, third = (
        made(r, session=s, watch=w) for r, s, w in ((1.2, "a", CALM), (1.24, "b", HOT), (1.22, "c", CALM))
    )
    one, two = stored_after(tmp_path, first), stored_after(tmp_path, second)
    assert two.sessions == ["a", "b"] and two.pairs == 22
    assert two.ratio == pytest.approx((1.2 * 1.24) ** 0.5)
    assert [two.low, two.high] == pytest.approx([one.low, 1.24 / 1.2 * one.high])
    assert two.tokens_per_second == pytest.approx(two.ratio * two.bf16_tokens_per_second, rel=1e-3)
    assert two.clock == pytest.approx((1980 * 1500) ** 0.5) and two.power_capped is None
    assert stored_after(tmp_path, first) == two  # it counts already
    three = stored_after(tmp_path, third)
    assert three.ratio == pytest.approx((1.2 * 1.24 * 1.22) ** (1 / 3))
    assert (three.low, three.high) == (two.low, two.high)


def test_a_session_at_the_edge_of_the_band_joins():
    was, new = (sessions.speed_entry(made(r, session=s)) for r, s in ((1.2, "a"), (1.23, "b")))
    edge = new.ratio / was.ratio - 1
    assert speed_goldens.joins(was, new, ROW.model_copy(update={"band": edge}))
    assert not speed_goldens.joins(was, new, ROW.model_copy(update={"band": edge - 1e-9}))


def test_without_a_row_a_session_takes_the_place_of_the_stored_one():
    golden = sessions.updated(None, [made(1.2, session="a")])
    [entry] = sessions.updated(golden, [made(1.2, session="b")]).cells.values()
    assert entry.sessions == ["b"]


@pytest.mark.parametrize("blind", ["a", "b"])
def test_the_clock_is_unknown_if_one_session_lacks_it(blind):
    entries = [
        sessions.speed_entry(made(session=s, watch=calm_but(sm_clocks=[] if s == blind else [1980])))
        for s in ("a", "b")
    ]
    assert speed_goldens.joined(*entries).clock is None


def test_each_cell_of_a_file_is_upgraded_by_itself(tmp_path):
    """The first cell that is stored after an upgrade changes what the file says of its packages. The others are of the old ones still."""
    other = CELL.model_copy(update={"recipe": "ao-rowwise"})
    stored_after(tmp_path, made(1.2, session="a"))
    for record in (made(1.3, session="a", cell=other), made(1.21, session="b", provenance=UPGRADED)):
        sessions.store(tmp_path, record, ROW)
    sessions.store(tmp_path, made(1.31, session="b", cell=other, provenance=UPGRADED), ROW)
    golden = store.load(tmp_path, SpeedGolden)[GPU, "base", "training-step"]
    assert {name: entry.sessions for name, entry in golden.cells.items()} == {
        "ao-rowwise native": ["b"],
        "te-current native": ["b"],
    }


def test_the_entries_of_an_older_golden_have_the_packages_of_their_file():
    golden = sessions.updated(None, [made(1.2, session="a")])
    bare = {name: entry.model_copy(update={"versions": None}) for name, entry in golden.cells.items()}
    other = made(1.3, session="b", cell=CELL.model_copy(update={"recipe": "ao-rowwise"}), provenance=UPGRADED)
    newer = sessions.updated(golden.model_copy(update={"cells": bare}), [other])
    wanted = {"ao-rowwise native": Versions.of(UPGRADED), "te-current native": Versions.of(HERE)}
    assert {name: entry.versions for name, entry in newer.cells.items()} == wanted
    assert versioned(newer.cells, newer.provenance) == newer.cells


def test_a_session_that_counts_already_leaves_the_file_as_it_is(tmp_path):
    for name in ("a", "b"):
        sessions.store(tmp_path, made(session=name, provenance=HERE.model_copy(update={"commit": name})), ROW)
    path = tmp_path / SpeedGolden.model_construct(gpu=GPU, model="base").path
    before = path.read_bytes()
    [line] = sessions.store(tmp_path, made(session="a", provenance=HERE.model_copy(update={"commit": "a"})), ROW)
    assert line.endswith("te-current native: unchanged") and path.read_bytes() == before


def test_an_older_golden_names_no_session_and_is_replaced(tmp_path):
    stored_after(tmp_path, made(1.2, session="a"))
    path = tmp_path / SpeedGolden.model_construct(gpu=GPU, model="base").path
    old = speed_goldens.read(path)
    cells = {name: entry.model_copy(update={"sessions": []}) for name, entry in old.cells.items()}
    storage.write_json(path, old.model_copy(update={"cells": cells}))
    assert stored_after(tmp_path, made(1.22, session="b")).sessions == ["b"]


def test_a_damaged_golden_is_named(tmp_path, golden):
    path = tmp_path / SpeedGolden.model_construct(gpu=GPU, model="base").path
    path.write_text(path.read_text().replace('"pairs": 11', '"pairs": 12', 1))
    with pytest.raises(ValueError, match=r"base.json: its checksum does not match"):
        store.load(tmp_path, SpeedGolden)


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
        sessions.store(tmp_path, run, ROW)
    assert not (tmp_path / "throughput").exists()


def test_a_golden_may_be_as_uncertain_as_one_side_of_its_band(tmp_path):
    [line] = sessions.store(tmp_path, made(spread=0.019), ROW)
    [entry] = store.load(tmp_path, SpeedGolden)[GPU, "base", "training-step"].cells.values()
    assert line.endswith("1.200x")
    assert 0.045 < (entry.high - entry.low) / entry.ratio <= ROW.band == 0.05
