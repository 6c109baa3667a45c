"""Goldens of GEMMs: they come back, sessions of the same GEMMs join, and what is no measurement does not become one."""

from __future__ import annotations

import gemm_records
import pytest
from fp8parity.judging.references import diff as golden_changes
from fp8parity.judging.references import sessions, store
from fp8parity.judging.references.diff import moved
from fp8parity.judging.references.timed import GemmEntry, GemmGolden, PlaceEntry, Versions, versioned
from fp8parity.records.gemms import Accumulation
from gemm_records import GPU, ROW, changed, made, slower, watched

LOST = {"bf16_seconds": [], "recipe_seconds": [], "failed": "no algorithm"}


def test_goldens_come_back_and_sessions_join(tmp_path):
    sessions.store(tmp_path, made(), ROW)
    lines = sessions.store(tmp_path, made(training=1.6 * 1.02, session="two"), ROW)
    ((key, golden),) = store.load(tmp_path, GemmGolden).items()
    assert key == (GPU, "codonfm-5b")
    assert (tmp_path / "throughput/nvidia-made-up/gemms/codonfm-5b.json").is_file()
    entry = golden.cells["te-current native"]
    assert entry.sums["training"][0] == pytest.approx(1.6 * 1.02**0.5, rel=1e-3)
    assert entry.sessions == ["s", "two"]
    assert "; sums" in lines[0].partition(" of 2 sessions")[2]
    [again] = sessions.store(tmp_path, made(), ROW)
    assert again.endswith("te-current native: unchanged")  # this session counts already
    assert store.load(tmp_path, GemmGolden)[key] == golden


def test_each_session_has_the_same_weight_in_the_sums_and_in_each_gemm(tmp_path):
    for name, faster in (("one", 1.0), ("two", 1.02), ("three", 1.05)):
        sessions.store(tmp_path, made(training=1.6 * faster, session=name), ROW)
    entry = next(iter(store.load(tmp_path, GemmGolden).values())).cells["te-current native"]
    found = [entry.sums["training"][0], entry.gemms["up wgrad training"].ratio]
    assert found == pytest.approx([1.6 * (1.02 * 1.05) ** (1 / 3)] * 2, rel=1e-4)
    assert entry.gemms["up wgrad kernel"].ratio == pytest.approx(1.9, rel=1e-4)


def test_sessions_join_the_rate_of_bf16_too(tmp_path):
    sessions.store(tmp_path, made(), ROW)
    sessions.store(tmp_path, slower(made(session="two"), 1.05), ROW)
    entry = next(iter(store.load(tmp_path, GemmGolden).values())).cells["te-current native"]
    assert entry.bf16_tflops == pytest.approx(640 / 1.05**0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (changed(made(), "qkv fprop kernel", **LOST), "te-current-codonfm-5b-native: qkv fprop: no algorithm"),
        (changed(made(), "o wgrad training", error=None), "o wgrad training: lacks its formats, accumulation or error"),
    ],
)
def test_an_entry_without_a_gemm_is_refused_with_its_name(record, words):
    with pytest.raises(ValueError, match=f"{words}$"):
        sessions.gemm_entry(record)


def test_sessions_join_only_if_the_gemms_ran_alike(tmp_path):
    sessions.store(tmp_path, made(watch=watched(power_capped=0.2)), ROW)
    sessions.store(tmp_path, made(watch=watched(power_capped=0.9), session="two"), ROW)
    entry = next(iter(store.load(tmp_path, GemmGolden).values())).cells["te-current native"]
    assert (entry.sessions, entry.power_capped) == (["s", "two"], 0.9)
    other = changed(made(session="three"), "up wgrad kernel", accumulation=Accumulation.FAST)
    sessions.store(tmp_path, other, ROW)
    entry = next(iter(store.load(tmp_path, GemmGolden).values())).cells["te-current native"]
    assert (entry.sessions, entry.power_capped) == (["three"], 0.0)
    upgraded = other.provenance.model_copy(update={"packages": {**other.provenance.packages, "torch": "3.0"}})
    sessions.store(tmp_path, other.model_copy(update={"session": "four", "provenance": upgraded}), ROW)
    entry = next(iter(store.load(tmp_path, GemmGolden).values())).cells["te-current native"]
    assert entry.sessions == ["four"]


def test_the_entries_of_an_older_golden_have_the_packages_of_their_file():
    golden = sessions.updated(None, [made()])
    bare = {name: entry.model_copy(update={"versions": None}) for name, entry in golden.cells.items()}
    upgraded = made().provenance.model_copy(update={"driver": "another"})
    other = made(cell=made().cell.model_copy(update={"recipe": "te-block"}), provenance=upgraded)
    newer = sessions.updated(golden.model_copy(update={"cells": bare}), [other])
    wanted = {"te-block native": Versions.of(upgraded), "te-current native": Versions.of(made().provenance)}
    assert {name: entry.versions for name, entry in newer.cells.items()} == wanted
    assert versioned(newer.cells, newer.provenance) == newer.cells


@pytest.mark.parametrize(
    ("second", "sessions"),
    [
        (made(training=1.6 * 1.04, session="two"), ["s", "two"]),
        (made(training=1.6 * 1.06, session="two"), ["two"]),  # beyond the band of 5%
        (made(kernel=1.9 * 0.94, session="two"), ["two"]),
        (slower(made(session="two"), 1.09), ["s", "two"]),
        (slower(made(session="two"), 1.12), ["two"]),  # BF16's own rate
    ],
)
def test_sessions_join_only_within_their_bands(tmp_path, second, sessions):
    for record in (made(), second):
        sessions.store(tmp_path, record, ROW)
    [golden] = store.load(tmp_path, GemmGolden).values()
    assert golden.cells["te-current native"].sessions == sessions


def test_two_gpus_whose_names_make_one_path_do_not_share_a_golden(tmp_path):
    sessions.store(tmp_path, made(), ROW)
    before = tmp_path / GemmGolden.model_construct(gpu=GPU, model="codonfm-5b").path.read_bytes()
    other = made(provenance=gemm_records.reports.provenance(device=GPU.replace(" ", "-")))
    with pytest.raises(ValueError, match="codonfm-5b.json: is of NVIDIA Made Up, not of NVIDIA-Made-Up"):
        sessions.store(tmp_path, other, ROW)
    assert tmp_path / GemmGolden.model_construct(gpu=GPU, model="codonfm-5b").path.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tool": "te-benchmark"}, "it imitates another tool$"),
        ({"gemms": gemm_records.main_grads(made()).gemms}, "its wgrad adds to main gradients$"),
        ({"micro_batch": 0, "sequence": 0, "layers": 0}, "a list of shapes has no golden$"),
        ({"watch": watched(busy_before=30)}, "30% busy"),
        ({"gemms": changed(made(), "o fprop kernel", **LOST).gemms}, "o fprop kernel failed"),
    ],
)
def test_what_may_not_become_a_golden(tmp_path, changes, words):
    with pytest.raises(ValueError, match=f"golden of the GEMMs of te-current-codonfm-5b-native refused: .*{words}"):
        sessions.store(tmp_path, made(**changes), ROW)
    assert not (tmp_path / "throughput").exists()


def test_a_damaged_golden_is_named(tmp_path):
    sessions.store(tmp_path, made(), ROW)
    path = tmp_path / GemmGolden.model_construct(gpu=GPU, model="codonfm-5b").path
    path.write_text(path.read_text().replace('"e5m2"', '"e4m3"', 1))
    with pytest.raises(ValueError, match=r"codonfm-5b.json: its checksum does not match"):
        store.load(tmp_path, GemmGolden)


def test_a_changed_golden_is_told():
    old, new = sessions.updated(None, [made()]), sessions.updated(None, [made(training=1.5)])
    assert gemm_goldens.changes(old, old) == []
    [line] = gemm_goldens.changes(old, new)
    assert "GEMMs of codonfm-5b, te-current native: kernel 1.900x, training 1.500x of 1 sessions" in line


def told(**entries: PlaceEntry | None) -> str:
    """What changed, if the GEMMs of these names become these. None removes one."""
    old = sessions.gemm_entry(made())
    names = {name.replace("_", " "): entry for name, entry in entries.items()}
    kept = {name: entry for name, entry in (old.gemms | names).items() if entry is not None}
    return "\n".join(golden_changes.changes(old, old.model_copy(update={"gemms": kept})))


def test_of_many_changed_gemms_the_one_that_changed_most_is_told():
    before = sessions.gemm_entry(made()).gemms
    faster = {
        name: e.model_copy(update={"ratio": e.ratio + (0.5 if name == "o dgrad kernel" else 0.01)})
        for name, e in before.items()
    }
    was = before["o dgrad kernel"].ratio
    assert told(**{name.replace(" ", "_"): e for name, e in faster.items()}) == (
        f"gemms: ratio of {len(before)} of {len(before)}, most that of o dgrad kernel: {moved(was, was + 0.5)}"
    )


def test_what_is_no_number_of_a_gemm_is_told_one_by_one():
    entry = sessions.gemm_entry(made()).gemms["o dgrad kernel"]
    assert told(o_dgrad_kernel=entry.model_copy(update={"formats": ("e4m3", "e4m3"), "count": 7})) == (
        f"gemms.o dgrad kernel.count {moved(entry.count, 7)}; gemms.o dgrad kernel.formats {moved(entry.formats, ('e4m3', 'e4m3'))}"
    )
    assert told(o_dgrad_kernel=None) == "gemms.o dgrad kernel removed"
    assert told(mine=entry).startswith(f"gemms.mine new, m {entry.m}, n {entry.n}, ")


def test_a_golden_under_another_name_is_named(tmp_path):
    sessions.store(tmp_path, made(), ROW)
    path = tmp_path / GemmGolden.model_construct(gpu=GPU, model="codonfm-5b").path
    other = path.rename(path.with_name("other.json"))
    with pytest.raises(ValueError, match=f"^{other}: is of the GEMMs of codonfm-5b on {GPU}; rename it$"):
        store.load(tmp_path, GemmGolden)


@pytest.mark.parametrize(
    ("old", "new", "both"), [(0.2, 0.9, 0.9), (0.9, 0.2, 0.9), (None, 0.9, None), (0.9, None, None)]
)
def test_joined_sessions_keep_the_higher_share_at_the_power_limit(old, new, both):
    """If one of them was not read, nobody knows it."""
    entries = [sessions.gemm_entry(made(watch=watched(power_capped=share))) for share in (old, new)]
    assert gemm_goldens.joined(*entries).power_capped == both


def test_joined_sessions_keep_the_ends_of_all_intervals():
    entry = sessions.gemm_entry(made())
    ends = [(1.0, 3.0), (1.5, 3.5)]
    for a, b in (ends, ends[::-1]):
        first, second = (entry.model_copy(update={"sums": {"kernel": (2.0, *x)}}) for x in (a, b))
        assert gemm_goldens.joined(first, second).sums["kernel"] == pytest.approx((2.0, 1.0, 3.5))


@pytest.mark.parametrize(("ratio", "sound"), [(1.0, True), (2.0, True), (0.9, False), (2.1, False)])
def test_a_ratio_lies_inside_its_interval(ratio, sound):
    given = sessions.gemm_entry(made()).model_dump() | {"sums": {"kernel": (ratio, 1.0, 2.0)}}
    if sound:
        assert GemmEntry.model_validate(given).sums["kernel"][0] == ratio
    else:
        with pytest.raises(ValueError, match=rf"the ratio {ratio:.3g} of kernel is not inside its interval \[1, 2\]"):
            GemmEntry.model_validate(given)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"power_capped": 1.0}, ""),
        ({"power_capped": 1.01}, "power_capped"),
        ({"power_capped": 0.0}, ""),
        ({"power_capped": -0.01}, "power_capped"),
        ({"gemms": 1}, ""),
        ({"gemms": 0}, "gemms"),
        ({"sessions": []}, "sessions"),
    ],
)
def test_an_entry_holds_a_share_a_gemm_and_a_session(changes, refused):
    given = sessions.gemm_entry(made()).model_dump()
    changes = {k: dict(list(given["gemms"].items())[:v]) if k == "gemms" else v for k, v in changes.items()}
    if not refused:
        assert GemmEntry.model_validate(given | changes).model_dump() == given | changes
    else:
        with pytest.raises(ValueError, match=rf"^1 validation error for GemmEntry\n{refused}\n"):
            GemmEntry.model_validate(given | changes)
