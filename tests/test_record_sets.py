"""Sets of records: zip and folder, old schemas, merging shards and machines, and judging them apart."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.judging.references.loss import from_runs
from fp8parity.records.sets import EnvironmentKey, load, machines, merge, save
from fp8parity.records.storage import load_records, name_of, write_json
from narrowed import some, trajectories

TOML = '[[loss]]\nmargin = 0.005\nseeds = [3]\nwhy = "a made-up row"\n'
WIDER = (1e-4, 4e-4, -3e-4)


@pytest.fixture
def shard(trajectory):
    """BF16 and one recipe of a session on a machine; BF16 and recipe are both off by ``shift``."""

    def make(recipe, session, device="EPYC", shift=0.0, **changes):
        provenance = trajectory().provenance.model_copy(update={"device": device})
        own = {"provenance": provenance, "session": session, **changes}
        bf16 = [trajectory("bf16", s, shift, **own) for s in range(3)]
        return bf16 + [trajectory(recipe, s, shift + WIDER[s], **own) for s in range(3)]

    return make


def put(folder: Path, records) -> Path:
    for r in records:
        write_json(folder / name_of(r), r)
    return folder


def test_a_zip_holds_the_same_records_and_the_same_bytes(shard, tmp_path):
    folder = put(tmp_path / "a", shard("te-current", "s"))
    for name in ("one.zip", "two.zip"):
        save(load([folder]), tmp_path / name)
    assert load_records(tmp_path / "one.zip") == load_records(folder)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_a_zip_is_never_written_over(shard, tmp_path):
    folder = put(tmp_path / "a", shard("te-current", "s"))
    save(load([folder]), tmp_path / "one.zip")
    with pytest.raises(ValueError, match=r"one.zip holds records already"):
        save(load([folder]), tmp_path / "one.zip")


def test_a_damaged_zip_is_named(tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK no")
    with pytest.raises(ValueError, match=r"bad.zip: not a complete .zip"):
        load_records(tmp_path / "bad.zip")


def test_a_tampered_member_of_a_zip_is_named(shard, tmp_path):
    record = write_json(tmp_path / "r.json", shard("te-current", "s")[0])
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("x.json", record.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"t.zip/x.json: its checksum does not match"):
        load_records(tmp_path / "t.zip")


def test_an_empty_zip_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "e.zip", "w"):
        pass
    with pytest.raises(ValueError, match=r"e.zip holds no records"):
        load_records(tmp_path / "e.zip")


def test_shards_of_a_matrix_become_one(shard, tmp_path, capsys):
    """Each trained its own BF16, to the same bits and in its own time: BF16 is kept once."""
    a = put(tmp_path / "a", shard("te-current", "one"))
    b = put(tmp_path / "b", shard("te-block", "two", seconds=9.0, step_seconds=0.7))
    assert main(["merge", str(tmp_path / "all.zip"), str(a), str(b)]) == 0
    assert "9 records of 1 environment, from 2 sets" in capsys.readouterr().out
    assert {(r.cell.recipe, r.seed) for r in trajectories(load_records(tmp_path / "all.zip"))} == {
        (r, s) for r in ("bf16", "te-current", "te-block") for s in range(3)
    }
    assert main(["merge", str(tmp_path / "again"), str(tmp_path / "all.zip"), str(a)]) == 0
    assert load_records(tmp_path / "again") == load_records(tmp_path / "all.zip")


def test_a_run_on_record_since_before_first_gradients_is_the_same_run(shard, tmp_path):
    """In either order; the record that says more is kept, and two that say different things contradict each other."""
    old = put(tmp_path / "old", shard("te-current", "one"))
    new = put(tmp_path / "new", shard("te-current", "two", first_gradients={"a": 1.0}))
    for sets in ([old, new], [new, old]):
        merged = trajectories(load(sets))
        assert len(merged) == 6
        assert all(r.first_gradients == {"a": 1.0} for r in merged)
    other = put(tmp_path / "other", shard("te-current", "three", first_gradients={"a": 2.0}))
    with pytest.raises(ValueError, match="another first_gradients"):
        load([new, other])


def test_a_contradiction_is_refused_and_names_both_files(shard, tmp_path, capsys):
    a = put(tmp_path / "a", shard("te-current", "one"))
    b = put(tmp_path / "b", shard("te-current", "two", final_weights="other"))
    assert main(["merge", str(tmp_path / "out"), str(a), str(b)]) == 2
    error = capsys.readouterr().err
    name = "te-current-nano-emulated-topics-seed0.json"
    assert f"{a / name} and {b / name} contradict each other" in error
    assert "another final_weights" in error
    assert not (tmp_path / "out").exists()


def test_sessions_keep_their_own_controls(shard, tmp_path):
    """On a GPU two shards' BF16 may differ in the last bits: each candidate stays with the control of its own session."""
    records = merge((Path(r.session), r) for r in [*shard("te-current", "one"), *shard("te-block", "two", shift=0.001)])
    (machine,) = machines(records)
    assert len(records) == 12
    for recipe, session in (("te-current", "one"), ("te-block", "two")):
        run = next(r for r in trajectories(records) if r.cell.recipe == recipe)
        assert some(machine.control(run)).session == session
    names = save(records, tmp_path / "out")
    assert len(names) == 12
    assert load([tmp_path / "out"]) == load([tmp_path / "out"])
    assert len(load([tmp_path / "out"])) == 12


def test_one_session_cannot_hold_two_controls(shard):
    records = [*shard("te-current", "one"), *shard("te-block", "one", shift=0.001)]
    with pytest.raises(ValueError, match="bf16-nano-native seed0 on EPYC"):
        merge((Path(str(i)), r) for i, r in enumerate(records))


def test_two_machines_stand_side_by_side_and_are_judged_apart(shard, tmp_path, capsys):
    """Planted: machine H200 is 2% off as a whole. Against its own control the recipe is fine; against EPYC's it is not."""
    a, b = shard("te-current", "one"), shard("te-current", "two", device="H200", shift=0.02)
    (tmp_path / "policy.toml").write_text(TOML)
    golden = from_runs([r for r in a if r.cell.recipe == "bf16"], [])
    write_json(tmp_path / "loss" / "nano-topics.json", golden)
    sets = [str(put(tmp_path / name, records)) for name, records in (("a", a), ("b", b))]
    report = tmp_path / "out.json"
    code = main(["judge", *sets, "--golden-dir", str(tmp_path), "--report", str(report)])
    assert code == 1
    first, second = (
        json.loads((tmp_path / f"out-{name}.json").read_text())["verdicts"] for name in ("1-EPYC", "2-H200")
    )
    assert {v["cell"]["recipe"]: v["status"] for v in first} == {"bf16": "pass", "te-current": "pass"}
    assert {v["cell"]["recipe"]: v["status"] for v in second} == {"bf16": "drift", "te-current": "drift"}
    control = dict(next(v for v in second if v["cell"]["recipe"] == "te-current")["lines"])["to control"]
    assert control.startswith("+0.0")  # +2% against EPYC's
    assert "H200: torch 0" in capsys.readouterr().out


def test_a_candidate_without_a_control_of_its_own_machine_is_an_error(shard, tmp_path, capsys):
    records = [r for r in shard("te-current", "one") if r.cell.recipe == "bf16"]
    records += [r for r in shard("te-current", "two", device="H200") if r.cell.recipe != "bf16"]
    (tmp_path / "policy.toml").write_text(TOML)
    assert main(["judge", str(put(tmp_path / "a", records)), "--golden-dir", str(tmp_path)]) == 1
    assert "seed 0, 1, 2: no BF16 control of the same machine and packages on record" in capsys.readouterr().out


def test_rejudging_says_which_verdicts_change(trajectory, tmp_path, capsys):
    runs = [trajectory(seed=s) for s in range(3)]
    for name, margin in (("new", "0.02"), ("old", "0.005")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.toml").write_text(TOML.replace("0.005", margin))
        write_json(tmp_path / name / "loss" / "nano-topics.json", from_runs(runs, []))
    records = put(tmp_path / "r", runs + [trajectory("te-current", s, 0.01 + WIDER[s]) for s in range(3)])
    arguments = ["judge", str(records), "--golden-dir", str(tmp_path / "new"), "--against"]
    assert main([*arguments, str(tmp_path / "old")]) == 0
    out = capsys.readouterr().out
    assert "1 of 2 verdicts differ from those of" in out
    assert "te-current-nano-emulated loss parity: fail -> pass" in out
    assert main([*arguments, str(tmp_path / "new")]) == 0
    assert "0 of 2 verdicts differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value"),
    [("packages", {"torch": "1"}), ("driver", "570"), ("environment", {"NVTE_X": "1"}), ("device", "e")],
)
def test_environments_differ_by_packages_driver_and_variables(trajectory, field, value):
    plain = trajectory()
    other = trajectory(provenance=plain.provenance.model_copy(update={field: value}))
    assert len(machines([plain, other])) == 2


def test_commit_and_threads_make_no_other_environment(trajectory):
    plain = trajectory()
    elsewhere = trajectory(provenance=plain.provenance.model_copy(update={"commit": "x", "threads": 8}))
    assert len(machines([plain, elsewhere])) == 1
    assert EnvironmentKey.of(plain).facts == {"torch": "0"}


def test_where_a_cache_lies_makes_no_other_machine(trajectory):
    """torch sets TORCHINDUCTOR_CACHE_DIR once it has compiled something, in the middle of a session."""

    def with_variable(**variables):
        return trajectory(provenance=trajectory().provenance.model_copy(update={"environment": variables}))

    plain = with_variable(NVTE_FLASH_ATTN="1")
    assert len(machines([plain, with_variable(NVTE_FLASH_ATTN="1", TORCHINDUCTOR_CACHE_DIR="/tmp/x")])) == 1
    assert len(machines([plain, with_variable(NVTE_FLASH_ATTN="0")])) == 2


def test_a_run_stands_in_for_one_of_its_own_make(trajectory):
    made = trajectory().provenance
    assert made.alike(made.model_copy(update={"environment": {"TRITON_CACHE_DIR": "/x"}, "quantizer": "eager"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "NVIDIA H100"),
        ("driver", "1"),
        ("cuda", "12"),
        ("commit", "d"),
        ("dirty", True),
        ("packages", {"torch": "9"}),
        ("environment", {"NVTE_X": "1"}),
    ],
)
def test_a_run_stands_in_only_for_one_of_its_own_make(trajectory, name, value):
    made = trajectory().provenance
    other = made.model_copy(update={name: value})
    assert not made.alike(other)
    assert not other.alike(made)
