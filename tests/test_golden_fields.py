"""Every field of a golden is checked when it is read. Each wrong value here has a right checksum, as after an edit and a new seal."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trajectories
from fp8parity.judging.references import loss as golden_fields
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.judging.references import sessions, store
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.timed import SpeedGolden
from fp8parity.records.storage import checksum, write_json
from paired import STEPS, golden_of, runner
from sessions import GOLDEN
from timings import ROW, made

Json = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loss golden that is written once. Tests change copies of it."""
    folder, golden = tmp_path_factory.mktemp("golden"), golden_of(runner(trajectories.made))
    path = write_json(folder / Golden.model_construct(model=golden.model, corpus=golden.corpus).path, golden)
    assert set(store.load(folder, Golden)) == {("nano", "topics")}
    return path


@pytest.fixture
def loss_file(tmp_path: Path, sound: Path) -> Path:
    path = tmp_path / Golden.model_construct(model="nano", corpus="topics").path
    path.parent.mkdir()
    return Path(shutil.copy(sound, path))


@pytest.fixture
def speed_file(tmp_path: Path) -> Path:
    sessions.store(tmp_path, made(), ROW)
    [path] = (tmp_path / "throughput").glob("*/*.json")
    return path


def sealed(path: Path, place: str, value: object) -> None:
    """Write ``value`` at ``place``, for example "seeds.0.loss.7", with a new checksum. The value ``KeyError`` removes the place."""
    data = json.loads(path.read_text())
    *way, last = (int(k) if k.isdigit() else k for k in place.split("."))
    holder: Any = data
    for key in way:
        holder = holder[key]
    if value is KeyError:
        del holder[last]
    else:
        holder[last] = value(copy.deepcopy(holder[last])) if callable(value) else value
    path.write_text(json.dumps(data | {"checksum": checksum(data)}))


def last_removed(values: list[Any]) -> list[Any]:
    return values[:-1]


def doubled(values: list[Any]) -> list[Any]:
    return [*values, values[0]]


LOSS = [
    ("schema_version", 2, "key schema_version"),
    ("schema_version", 0, "key schema_version"),
    ("model", "", "key model"),
    ("model", "other", "is of other on topics; rename it"),
    ("corpus", "other", "is of nano on other; rename it"),
    ("spec_hash", "", "key spec_hash"),
    ("fingerprint", "", "key fingerprint"),
    ("floor", "NaN", "key floor"),
    ("floor", -1.0, "key floor"),
    ("schedule.tail", 0, "schedule: tail is 0; it is a whole number from 1 to the 160 steps"),
    ("schedule.tail", -5, "schedule: tail is -5"),
    ("schedule.tail", 12.5, "schedule: tail is 12.5"),
    ("schedule.tail", STEPS + 1, "schedule: tail is 161"),
    ("schedule.tail", KeyError, "schedule: it has no tail"),
    ("schedule.steps", 0, "schedule: steps is 0"),
    ("schedule.lr", "Infinity", "key schedule.lr"),
    ("seeds", [], "key seeds"),
    ("seeds", doubled, "seeds: 0 appears twice"),
    ("seeds.1.initial_weights", "w0", "seeds: two of them start from the initial weights w0"),
    ("seeds.0.seed", -1, "key seeds.0.seed"),
    ("seeds.0.initial_weights", "", "key seeds.0.initial_weights"),
    ("seeds.0.loss.7", "NaN", "key seeds.0.loss.7"),
    ("seeds.0.loss.7", "Infinity", "key seeds.0.loss.7"),
    ("seeds.0.loss.7", -1.0, "key seeds.0.loss.7"),
    ("seeds.0.loss", last_removed, "seeds.0: 159 losses and 160 gradient norms"),
    ("seeds.0.grad_norm.7", "NaN", "key seeds.0.grad_norm.7"),
    ("seeds.0.grad_norm.7", -1.0, "key seeds.0.grad_norm.7"),
    ("seeds.0.validation", [], "key seeds.0.validation"),
    ("seeds.0.validation.0.1", "NaN", "key seeds.0.validation.0.1"),
    ("seeds.0.validation.0.0", 160, "the last validation is at step 160 of 160"),
    ("seeds.0.validation", [[159, 3.5], [100, 3.6]], "the steps of its validations do not rise"),
    ("seeds.0.replicas.1.variant", "replica1", "replicas: replica1 appears twice"),
    ("seeds.0.replicas.1.loss.3", "NaN", "key seeds.0.replicas.1.loss.3"),
    ("seeds.0.replicas.1.validation", [[100, 3.5]], "a replica was validated at other steps"),
    ("schedule.steps", STEPS - 1, "seeds.0 has 160 losses; the schedule has 159 steps"),
    ("gradients", [{"metric": "total sqnr", "where": "initial", "value": "NaN"}], "gradients: total sqnr @ initial is nan"),
    ("gradients", [{"metric": "a", "where": "b", "value": 1}] * 2, "gradients: a @ b appears twice"),
    ("spreads.0.recipes", [], "key spreads.0.recipes"),
    ("spreads.0.recipes", ["bf16"], "key spreads.0: recipes: bf16 is the control"),
    ("spreads", doubled, "spreads: te-current appears twice"),
    ("spreads.0.runs", 0, "key spreads.0.runs"),
    ("spreads.0.seeds", 1, "key spreads.0.seeds"),
    ("spreads.0.seeds", 25, "24 runs cannot have 25 seeds"),
    ("spreads.0.window", 0, "key spreads.0.window"),
    ("spreads.0.window", 16, "20 windows of 16 steps do not make 160 steps"),
    ("spreads.0.loss", [], "key spreads.0.loss"),
    ("spreads.0.loss.3", "NaN", "key spreads.0.loss.3: Input should be a finite number"),
    ("spreads.0.loss.3", -1e-4, "key spreads.0.loss.3"),
    ("spreads.0.loss.3", 0.5, "key spreads.0.loss.3"),
    ("spreads.0.grad_norm.3", 5.0, "key spreads.0.grad_norm.3"),
    ("spreads.0.grad_norm.3", "NaN", "key spreads.0.grad_norm.3: Input should be a finite number"),
    ("spreads.0.grad_norm.3", -1e-4, "key spreads.0.grad_norm.3"),
    ("spreads.0.grad_norm", last_removed, "20 windows of losses and 19 of gradient norms"),
    ("spreads.0.tail_sd", 0.0, "key spreads.0.tail_sd"),
    ("spreads.0.tail_sd", 0.01, "tail_sd 0.01 does not follow from its windows: their tail has at most"),
    ("spreads.0.seconds", "Infinity", "key spreads.0.seconds"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "words"), LOSS, ids=[f"{p} {str(v)[:20]}" for p, v, _ in LOSS])
def test_a_wrong_field_of_a_loss_golden_is_named(loss_file, tmp_path, place, value, words):
    sealed(loss_file, place, value)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        store.load(tmp_path, Golden)
    text = str(caught.value)
    assert text.startswith(f"{loss_file}: ") and words in text and "\n" not in text, text


@pytest.mark.parametrize("value", [1, 2, 160])
def test_a_whole_number_of_a_schedule_may_be_its_limit(value):
    assert golden_fields.whole({"tail": float(value)}, "tail", 160, "to the 160 steps") == value


@pytest.mark.parametrize("value", [0, 0.5, 1.5, 160.5, 161])
def test_any_other_number_of_a_schedule_is_refused(value):
    with pytest.raises(
        ValueError, match=f"^schedule: tail is {value:g}; it is a whole number from 1 to the 160 steps$"
    ):
        golden_fields.whole({"tail": value}, "tail", 160, "to the 160 steps")


def test_a_golden_keeps_its_version(loss_file, tmp_path):
    assert store.load(tmp_path, Golden)["nano", "topics"].schema_version == golden_fields.SCHEMA == 1
    sealed(loss_file, "schema_version", 2)
    with pytest.raises(ValueError, match="schema 2 is unknown; this fp8parity reads schema 1$"):
        store.load(tmp_path, Golden)


CELL = "cells.te-current native"
SPEED = [
    ("schema_version", 7, "key schema_version"),
    ("gpu", "NVIDIA Other", "is of base on NVIDIA Other; rename it"),
    ("model", "small", "is of small on NVIDIA Made Up; rename it"),
    (f"{CELL}.ratio", "NaN", "ratio"),
    (f"{CELL}.ratio", 0, "ratio"),
    (f"{CELL}.low", 1.3, "the ratio 1.2 is not inside its interval [1.3,"),
    (f"{CELL}.high", "Infinity", "high"),
    (f"{CELL}.pairs", 5, "pairs"),
    (f"{CELL}.memory", -0.9, "memory"),
    (f"{CELL}.tokens", 0, "tokens"),
    (f"{CELL}.tokens_per_second", "NaN", "tokens_per_second"),
    (f"{CELL}.bf16_tokens_per_second", 0.0, "bf16_tokens_per_second"),
    (f"{CELL}.bf16_tokens_per_second", 50000.0, "the ratio is 1.2, and that of its tokens/s is 1.97"),
    (f"{CELL}.flops_per_token", 0, "flops_per_token"),
    ("cells", {"te-current sideways": None}, "cells.te-current sideways"),
    ("content", "half a block", "key content"),
    ("content", "block", "is of base on NVIDIA Made Up; rename it"),
    (f"{CELL}.clock", 0, "clock"),
    (f"{CELL}.power_capped", 1.5, "power_capped"),
    (f"{CELL}.attention", "", "attention"),
    (f"{CELL}.optimizer", "", "optimizer"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "words"), SPEED, ids=[f"{p} {str(v)[:20]}" for p, v, _ in SPEED])
def test_a_wrong_field_of_a_throughput_golden_is_named(speed_file, tmp_path, place, value, words):
    assert len(store.load(tmp_path, SpeedGolden)) == 1
    sealed(speed_file, place, value)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        store.load(tmp_path, SpeedGolden)
    text = str(caught.value)
    assert text.startswith(f"{speed_file}: ") and words in text and "\n" not in text, text


def test_the_committed_goldens_are_sound():
    assert len(store.load(GOLDEN, Golden)) >= 6
    assert len(store.load(GOLDEN, SpeedGolden)) >= 3
    assert len(measured_numbers.load(GOLDEN).tables) >= 3


def test_numbers_of_another_gpu_are_refused(tmp_path):
    here = tmp_path / "numerics"
    here.mkdir()
    (here / "sources.csv").write_text(
        f"source,records,device,packages,sha256\na1b2c3d4,s.zip,NVIDIA H200,torch 2,a1b2c3d4{'0' * 56}\n"
    )
    (here / "nvidia-h100.csv").write_text(
        "check,metric,where,model,recipe,execution,value,source\ngemm,x,y,tiny,te-current,native,1,a1b2c3d4\n"
    )
    with pytest.raises(ValueError, match=r"nvidia-h100.csv:2: source a1b2c3d4 was measured on NVIDIA H200"):
        measured_numbers.load(tmp_path)
