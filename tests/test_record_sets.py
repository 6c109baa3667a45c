"""Sets of records: grouped by machine, merged, and judged apart."""

from __future__ import annotations

import json

import pytest
import two_sides
from fp8parity.cli import main
from fp8parity.judging.references.loss import from_runs
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import EnvironmentKey, load, machines, save
from fp8parity.records.storage import load_records, write_json
from narrowed import trajectories

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


def test_same_records_give_the_same_bytes_and_equal_names_a_hash(shard, tmp_path):
    folder = two_sides.save(tmp_path / "a", shard("te-current", "s"))
    for name in ("one.zip", "two.zip"):
        save(load([folder]), tmp_path / name)
    assert load_records(tmp_path / "one.zip") == load_records(folder)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    control, run, *_ = shard("te-current", "s")[2:]
    other = control.model_copy(update={"session": "t", "final_weights": "x"})
    names = save([control, run, other], tmp_path / "set")
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == names and len(names) == 3
    assert sorted(r.session for r in load([tmp_path / "set"])) == ["s", "s", "t"]


@pytest.mark.parametrize(
    ("held", "out", "words"),
    [("out/a.json", "out", "holds records"), ("out/a.txt", "out", "is not empty"), ("out.zip", "out.zip", "holds rec")],
)
def test_merge_overwrites_nothing(shard, tmp_path, held, out, words):
    (tmp_path / held).parent.mkdir(exist_ok=True)
    (tmp_path / held).write_text("")
    with pytest.raises(ValueError, match=words):
        save(shard("te-current", "s"), tmp_path / out)


def test_shards_of_a_matrix_become_one_set(shard, tmp_path, capsys):
    """Each trained its own BF16, to the same bits and in its own time: BF16 is kept once."""
    a = two_sides.save(tmp_path / "a", shard("te-current", "one"))
    b = two_sides.save(tmp_path / "b", shard("te-block", "two", seconds=9.0, step_seconds=0.7))
    assert main(["merge", str(tmp_path / "all.zip"), str(a), str(b)]) == 0
    assert "9 records of 1 environment, from 2 sets" in capsys.readouterr().out
    assert {(r.cell.recipe, r.seed) for r in trajectories(load_records(tmp_path / "all.zip"))} == {
        (r, s) for r in ("bf16", "te-current", "te-block") for s in range(3)
    }
    assert main(["merge", str(tmp_path / "again"), str(tmp_path / "all.zip"), str(a)]) == 0
    assert load_records(tmp_path / "again") == load_records(tmp_path / "all.zip")


def test_record_with_more_fields_is_kept(shard, tmp_path):
    """In either order; of two that say different things neither."""
    old = two_sides.save(tmp_path / "old", shard("te-current", "one"))
    new = two_sides.save(tmp_path / "new", shard("te-current", "two", first_gradients={"a": 1.0}))
    for sets in ([old, new], [new, old]):
        assert [r.first_gradients for r in trajectories(load(sets))] == [{"a": 1.0}] * 6


def test_contradiction_names_both_files(shard, tmp_path, capsys):
    a = two_sides.save(tmp_path / "a", shard("te-current", "one"))
    b = two_sides.save(tmp_path / "b", shard("te-current", "two", final_weights="other"))
    assert main(["merge", str(tmp_path / "out"), str(a), str(b)]) == 2
    error = capsys.readouterr().err
    name = "te-current-nano-emulated-topics-seed0.json"
    assert f"{a / name} and {b / name} contradict each other" in error
    assert "another final_weights" in error
    assert not (tmp_path / "out").exists()


def test_machines_are_judged_apart(shard, tmp_path, capsys):
    """Planted: machine H200 is 2% off as a whole. Against its own control the recipe is fine; against EPYC's it is not."""
    a, b = shard("te-current", "one"), shard("te-current", "two", device="H200", shift=0.02)
    (tmp_path / "policy.toml").write_text(TOML)
    golden = from_runs([r for r in a if r.cell.recipe == "bf16"], [])
    write_json(tmp_path / "loss" / "nano-topics.json", golden)
    sets = [str(two_sides.save(tmp_path / name, records)) for name, records in (("a", a), ("b", b))]
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


def with_provenance(run: Trajectory, **changes: object) -> Trajectory:
    return run.model_copy(update={"provenance": run.provenance.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"packages": {"torch": "1"}}, 2),
        ({"driver": "570"}, 2),
        ({"device": "e"}, 2),
        ({"environment": {"NVTE_X": "1"}}, 2),
        ({"environment": {"TORCHINDUCTOR_CACHE_DIR": "/tmp/x"}}, 1),
        ({"commit": "x", "threads": 8}, 1),
    ],
)
def test_environment_is_device_packages_driver_and_settings(trajectory, changes, count):
    plain = with_provenance(trajectory(), environment={})
    assert len(machines([plain, with_provenance(plain, **changes)])) == count
    facts = {"cuda": "13.0", "driver": "580", "environment": {"NVTE_X": "1"}}
    key = EnvironmentKey.of(with_provenance(plain, **facts))
    assert key.facts == {"torch": "0", "CUDA": "13.0", "driver": "580", "NVTE_X": "1"}


def test_control_of_a_run_is_that_of_its_session_and_seed(shard):
    """Otherwise the first one of its seed."""
    first, second = shard("te-current", "one"), shard("te-block", "two", final_weights="x")
    [machine] = machines([*first, *second])
    assert machine.control(second[-1]) is second[2] and machine.control(first[-1]) is first[2]
    [machine] = machines([*first, *second[3:]])
    assert machine.control(second[-1]) is first[2]
