"""Golden files: every field is validated, also after an edit with a new checksum."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gemm_records
import pytest
import timings
import trajectories
from fp8parity.judging.references import pooling, store
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.timed import GemmGolden, SpeedGolden
from fp8parity.records.storage import checksum, write_json
from paired import golden_of, runner
from sessions import GOLDEN


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One golden of each kind. Tests change copies."""
    folder = tmp_path_factory.mktemp("golden")
    made = golden_of(runner(trajectories.made))
    write_json(folder / made.path, made)
    pooling.store(folder, timings.made(), timings.ROW)
    pooling.store(folder, gemm_records.made(), gemm_records.ROW)
    return folder


def edited(written: Path, folder: Path, kind: type[store.GoldenFile], place: str, value: object) -> Path:
    """Write ``value`` at ``place``, such as "seeds.0.loss.7", with a new checksum; None removes the last item."""
    shutil.copytree(written, folder, dirs_exist_ok=True)
    [path] = folder.glob(kind.PATTERN)
    data = json.loads(path.read_text())
    *way, last = (int(k) if k.isdigit() else k for k in place.split("."))
    holder: Any = data
    for key in way:
        holder = holder[key]
    if value is None:
        holder[last].pop()
    else:
        holder[last] = value
    path.write_text(json.dumps(data | {"checksum": checksum(data)}))
    return path


CELL = "cells.te-current native"
GEMM = f"{CELL}.gemms.o dgrad kernel"
FAULTS: list[tuple[type[store.GoldenFile], str, object, str]] = [
    (Golden, "schema_version", 2, "schema 2 is unknown; this fp8parity reads schema 1"),
    (Golden, "model", "", "key model"),
    (Golden, "model", "other", "it holds other on topics; rename it"),
    (Golden, "spec_hash", "", "key spec_hash"),
    (Golden, "schedule.tail", 0, "schedule: tail is 0; it is an integer from 1 to the 160 steps"),
    (Golden, "schedule.steps", 159, "seeds.0 has 160 losses; the schedule has 159 steps"),
    (Golden, "seeds", [], "key seeds"),
    (Golden, "seeds.1.seed", 0, "seeds: 0 appears twice"),
    (Golden, "seeds.1.initial_weights", "w0", "initial weights: w0 appears twice"),
    (Golden, "seeds.0.loss.7", "NaN", "key seeds.0.loss.7"),
    (Golden, "seeds.0.loss", None, "seeds.0: 159 losses and 160 gradient norms"),
    (Golden, "seeds.0.validation", [], "key seeds.0.validation"),
    (Golden, "seeds.0.validation.0.0", 160, "the last validation is at step 160 of 160"),
    (Golden, "seeds.0.validation", [[159, 3.5], [100, 3.6]], "the steps of its validations do not rise"),
    (Golden, "seeds.0.replicas.1.variant", "replica1", "replicas: replica1 appears twice"),
    (Golden, "seeds.0.replicas.1.validation", [[100, 3.5]], "a replica was validated at other steps"),
    (Golden, "gradients", [{"metric": "a", "where": "b", "value": "NaN"}], "gradients: a @ b is nan"),
    (Golden, "gradients", [{"metric": "a", "where": "b", "value": 1}] * 2, "gradients: a @ b appears twice"),
    (Golden, "noise.0.recipes", ["bf16"], "bf16 is the control"),
    (Golden, "noise.0.seeds", 25, "24 runs cannot have 25 seeds"),
    (Golden, "noise.0.window", 16, "20 windows of 16 steps do not make 160 steps"),
    (Golden, "noise.0.loss.3", 0.5, "key noise.0.loss.3"),
    (Golden, "noise.0.grad_norm", None, "20 windows of losses and 19 of gradient norms"),
    (Golden, "noise.0.tail_sd", 0.01, "tail_sd 0.01 does not follow from its windows: they have at most"),
    (SpeedGolden, "schema_version", 7, "key schema_version"),
    (SpeedGolden, "gpu", "NVIDIA Other", "it holds NVIDIA Other, base; rename it"),
    (SpeedGolden, "content", "half a block", "key content"),
    (SpeedGolden, "cells", {"te-current sideways": {}}, "cells.te-current sideways"),
    (SpeedGolden, f"{CELL}.ratio", "NaN", "ratio"),
    (SpeedGolden, f"{CELL}.low", 1.3, "the ratio, 1.2, is not inside its interval [1.3,"),
    (SpeedGolden, f"{CELL}.bf16_tokens_per_second", 50000.0, "the ratio is 1.2, and that of its tokens/s is 1.97"),
    (SpeedGolden, f"{CELL}.sessions", [], "sessions"),
    (GemmGolden, "model", "other", "it holds NVIDIA Made Up, GEMMs of other; rename it"),
    (
        GemmGolden,
        f"{CELL}.sums.kernel",
        [2.0, 2.1, 2.2],
        "the ratio of kernel, 2, is not inside its interval [2.1, 2.2]",
    ),
    (GemmGolden, f"{CELL}.gemms", {}, "gemms"),
    (GemmGolden, f"{GEMM}.accumulation", "slow", "accumulation"),
]


@pytest.mark.parametrize(
    ("kind", "place", "value", "words"), FAULTS, ids=[f"{k.__name__} {p} {str(v)[:20]}" for k, p, v, _ in FAULTS]
)
def test_wrong_field_with_a_new_checksum_is_named(written, tmp_path, kind, place, value, words):
    path = edited(written, tmp_path, kind, place, value)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked in parts
        store.load(tmp_path, kind)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and words in text and "\n" not in text, text


@pytest.mark.parametrize("kind", [Golden, SpeedGolden, GemmGolden])
def test_golden_comes_back_and_damage_is_named(written, tmp_path, kind):
    [golden] = store.load(written, kind).values()
    assert store.write(tmp_path, golden)[0].startswith(f"{golden.title}: + ")
    assert store.load(tmp_path, kind) == {golden.key: golden}
    assert store.write(tmp_path, golden) == [f"{golden.title}: unchanged"]
    path = tmp_path / golden.path
    path.write_text(path.read_text().replace(golden.model, "x", 1))
    with pytest.raises(ValueError, match=f"{path.name}: its checksum does not match"):
        store.load(tmp_path, kind)


def test_committed_goldens_are_valid():
    assert [len(store.load(GOLDEN, kind)) for kind in (Golden, SpeedGolden, GemmGolden)] == [8, 12, 8]


def test_means_are_those_of_the_run_and_its_replicas():
    golden = golden_of(runner(trajectories.made))
    seed = golden.seeds[0]
    replica = seed.replicas[0].model_copy(
        update={"loss": [7.0] * 160, "grad_norm": [4.0] * 160, "validation": [(159, 7.5)]}
    )
    both = seed.model_copy(update={"replicas": [replica]})
    assert both.mean_loss == [(x + 7) / 2 for x in seed.loss]
    assert both.mean_norm == [(x + 4) / 2 for x in seed.grad_norm]
    assert both.mean_validation[-1] == (seed.validation[-1][1] + 7.5) / 2
    alone = seed.model_copy(update={"replicas": []})
    assert (alone.mean_loss, alone.mean_norm) == (seed.loss, seed.grad_norm)
