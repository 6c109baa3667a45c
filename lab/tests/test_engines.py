"""``fp8parity engines``: an engine computes what the trainer does, numbers are what they say, logs are judged, faults are seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_faults
import numpy as np
import pytest
import torch
from fp8parity import cli
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.workload import models as workload
from fp8parity.workload.presets import presets
from fp8parity_lab.cli.engines import COMMAND
from fp8parity_lab.engines import invariance, logs, measured, scores
from fp8parity_lab.engines.models import VARIANTS, FolderSubject, OwnSubject, Subject, whole
from fp8parity_lab.engines.scores import FLIPS, K3, MEAN, OFF_10, OFF_20, P99, Numbers, Pair, Scores

CPU = torch.device("cpu")
SMALL = ("--model", "pico", "--steps", "3", "--sequences", "64", "--prompt", "8", "--length", "20", "--device", "cpu")


@pytest.fixture
def engines(monkeypatch, tmp_path) -> Callable[..., int]:
    """Run the command in a scratch folder, also where an older lab is installed."""
    monkeypatch.setattr(cli, "added", lambda: {"engines": COMMAND})
    monkeypatch.chdir(tmp_path)
    return lambda *words: cli.main(["engines", *map(str, words)])


def qwen3(folder: Path) -> Path:
    """Save a small Qwen3 with random weights."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 256, "initializer_range": 0.1, "bos_token_id": 7}
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **more)).save_pretrained(folder)
    return folder


def subject(kind: str, folder: Path) -> Subject:
    if kind == "qwen3":
        return FolderSubject(qwen3(folder), CPU)
    weights: dict[str, torch.Tensor] = dict(workload.build(presets()[kind].model, 0).named_parameters())
    return OwnSubject(presets()[kind].model, weights, CPU)


@pytest.mark.parametrize("kind", ["micro", "tiny", "qwen3"])
@pytest.mark.parametrize("name", VARIANTS)
def test_engine_computes_what_the_trainer_computes(kind, name, tmp_path):
    """In FP32, to rounding: chunks, KV cache, mask and rotations are right."""
    own, engine = subject(kind, tmp_path), VARIANTS[name]
    model = own.build(RECIPES["bf16"], Execution.NATIVE).model.float()
    ids = torch.randint(0, 256, (3, 41), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), own.engine(model, engine) as step:
        found = torch.cat([step(ids[:, a:b]) for a, b in engine.spans(19, 41)], 1)
    with torch.no_grad():
        torch.testing.assert_close(found, whole(model, ids), rtol=1e-3, atol=2e-4)


def test_spans_cover_prompt_in_chunks_then_single_tokens():
    assert VARIANTS["engine"].spans(20, 23) == [(0, 16), (16, 20), (20, 21), (21, 22), (22, 23)]
    assert VARIANTS["batch"].spans(20, 23) == [(0, 23)]
    assert VARIANTS["chunks"].spans(20, 23) == [(0, 16), (16, 23)]


def made(*deltas: list[float], steps: tuple[int, ...] = ()) -> tuple[Scores, Scores]:
    """Scores of a trainer, and of an engine that is 0 where the trainer is -1 + d."""
    engine = [np.full(len(d), -1.0) for d in deltas]
    trainer = [e + np.array(d) for e, d in zip(engine, deltas, strict=True)]
    tokens = [np.arange(len(d)) for d in deltas]
    return Scores(tokens, trainer, steps=steps), Scores(tokens, engine, steps=steps)


def drawn(size: float, sequences: int = 40, seed: int = 0, steps: tuple[int, ...] = ()) -> tuple[Scores, Scores]:
    rng = np.random.default_rng(seed)
    return made(*(rng.normal(0, size * rng.uniform(0.5, 1.5), 30).tolist() for _ in range(sequences)), steps=steps)


def values(numbers: Numbers) -> dict[str, float]:
    return {name: number.value for name, number in numbers.found.items()}


def test_numbers_of_known_differences():
    found = values(Pair(*made(*8 * [[0.0, math.log(1.05)], [math.log(1.2), -math.log(1.3)]])).numbers())
    d = [0.0, math.log(1.05), math.log(1.2), -math.log(1.3)]
    assert found[MEAN] == pytest.approx(sum(map(abs, d)) / 4) and found[P99] == pytest.approx(math.log(1.3))
    assert found[K3] == pytest.approx(sum(math.exp(x) - 1 - x for x in d) / 4)
    assert (found[OFF_10], found[OFF_20]) == (0.5, 0.25) and FLIPS not in found


def test_flips_count_other_most_likely_tokens():
    one, other = made(*16 * [[0.0, 0.0]])
    top = 8 * [np.array([1, 2]), np.array([3, 4])], 8 * [np.array([1, 2]), np.array([3, 5])]
    pair = Pair(*(Scores(s.tokens, s.logprobs, t) for s, t in zip((one, other), top, strict=True)))
    assert values(pair.numbers())[FLIPS] == 0.25


def test_equal_scores_are_zero_to_the_last_bit():
    one, _ = drawn(1.0)
    assert set(values(Pair(one, one).numbers()).values()) == {0.0}


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Sequences differ in size, so tokens alone would give intervals that are too narrow."""
    truth = values(Pair(*drawn(0.05, 2_000, 99)).numbers())[MEAN]
    found = [Pair(*drawn(0.05, 40, n)).numbers().found[MEAN] for n in range(200)]
    assert 0.88 <= np.mean([x.low <= truth <= x.high for x in found]) <= 0.99


def test_sound_pairs_are_rarely_above_their_baseline():
    bad = []
    for n in range(200):
        own, baseline = (Pair(*drawn(0.05, 40, seed)).numbers(seed) for seed in (n, n + 500))
        bad.append(any(row.worse for row in scores.above(own, baseline)))
    assert np.mean(bad) <= 0.05


def write(path: Path, found: Scores) -> Path:
    lines = [
        {"token_ids": ids.tolist(), "logprobs": values.tolist()} | ({"step": found.steps[i]} if found.steps else {})
        for i, (ids, values) in enumerate(zip(found.tokens, found.logprobs, strict=True))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def pair_of(folder: Path, name: str, found: tuple[Scores, Scores]) -> tuple[Path, Path]:
    return write(folder / f"{name}-t.jsonl", found[0]), write(folder / f"{name}-e.jsonl", found[1])


@pytest.mark.parametrize(
    ("size", "allowed", "code", "sentence"),
    [
        (0.05, "1", 0, "No number above the baseline."),
        (0.10, "1", 1, "Above the baseline: mean |d|, p99 |d|, k3, ratio off 10%"),
        (0.10, "6", 0, "No number above the baseline."),
    ],
)
def test_logs_are_judged_by_a_baseline(engines, tmp_path, capsys, size, allowed, code, sentence):
    sound = pair_of(tmp_path, "sound", drawn(0.05))
    own = pair_of(tmp_path, "own", drawn(size, seed=1))
    words = ("judge", *own, "--baseline", *sound, "--allowed", allowed, "--report", "found.json")
    assert engines(*words) == code
    out = capsys.readouterr().out
    assert sentence in out
    assert json.loads((tmp_path / "found.json").read_text())["red"] == bool(code)


@pytest.mark.parametrize(("growth", "code", "word"), [(0.0, 0, "flat"), (0.003, 1, "rising"), (-0.003, 0, "falling")])
def test_trend_over_steps(engines, tmp_path, capsys, growth, code, word):
    """Eight sequences at each of ten steps; a difference that grows is red without a baseline, too."""
    parts = [drawn(0.05 + growth * step, 8, step) for step in range(10)]
    steps = tuple(10 * step for step in range(10) for _ in range(8))
    for known in ((steps, steps), (steps, ()), ((), steps)):
        trainer, engine = (
            Scores([t for p in parts for t in p[i].tokens], [x for p in parts for x in p[i].logprobs], steps=known[i])
            for i in range(2)
        )
        assert engines("judge", *pair_of(tmp_path, "own", (trainer, engine))) == code
        assert f"Mean |d| is {word} over 10 steps; " in capsys.readouterr().out


def test_logs_without_baseline_have_no_verdict(engines, tmp_path, capsys):
    assert engines("judge", *pair_of(tmp_path, "own", drawn(0.1))) == 0
    assert "without a baseline to judge it by" in capsys.readouterr().out


LINE: dict[str, Any] = {"token_ids": [5, 6], "logprobs": [-0.5, -1.0]}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ([LINE, LINE | {"token_ids": [5, 7]}], "sequence 1: token 1 is 6 of the trainer and 7 of the engine"),
        ([LINE, {"token_ids": [5], "logprobs": [-1]}], "sequence 1 has 2 tokens of the trainer and 1 of the engine"),
        ([LINE], "the trainer has 2 sequences and the engine 1"),
        ([LINE, LINE | {"logprobs": [-1.0]}], "sequence 1 (line 2): 2 tokens and 1 log-probabilities"),
        (
            [LINE, LINE | {"logprobs": [-1.0, 0.25]}],
            "sequence 1 (line 2): the log-probability of token 1 is 0.25, above 0",
        ),
        ([LINE | {"logprobs": [NAN, -1.0]}, LINE], "sequence 0 (line 1): the log-probability of token 0 is nan"),
        ([LINE | {"logprobs": [-INF, -1.0]}, LINE], "sequence 0 (line 1): the log-probability of token 0 is -inf"),
        ([LINE | {"logprobs": [None, -1.0]}, LINE], "sequence 0 (line 1): the log-probability of token 0 is None"),
        ([LINE, {"token_ids": [], "logprobs": []}], "sequence 1 (line 2) is empty"),
        ([LINE, LINE | {"token_ids": ["a", 6]}], "sequence 1 (line 2): token 0 is 'a', which is no id"),
        ([LINE, LINE | {"step": 1}], "sequence 0 has no step, and others have one"),
        ([LINE, LINE | {"step": "1"}], "sequence 1 (line 2): step '1' is no whole number"),
        (
            [LINE, {"ids": [1]}],
            "line 2 is not of the form plain, token_ids: [...], logprobs: [...]: KeyError('token_ids')",
        ),
        ([LINE, [1]], "line 2 is not of the form plain"),
        ([], "e.jsonl: no sequences"),
    ],
)
def test_wrong_logs_are_refused_with_their_sequence(engines, tmp_path, capsys, engine, message):
    for name, lines in (("t", [LINE, LINE]), ("e", engine)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert engines("judge", "t.jsonl", "e.jsonl") == 2
    assert message in capsys.readouterr().err


def test_files_that_cannot_be_judged_are_refused(engines, tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text(json.dumps(LINE) + "\n")
    assert engines("judge", "t.jsonl", "t.jsonl") == 2
    assert "an interval over sequences needs at least 16" in capsys.readouterr().err
    (tmp_path / "s.jsonl").write_text((json.dumps(LINE | {"step": 1}) + "\n") * 16)
    assert engines("judge", "s.jsonl", "s.jsonl") == 2
    assert "1 different steps: a trend needs at least 4" in capsys.readouterr().err
    assert engines("judge", "t.jsonl", "none.jsonl") == 2
    assert "none.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("plain", LINE),
        (
            "vllm",
            {
                "token_ids": [5, 6],
                "logprobs": [{"5": {"logprob": -0.5}, "9": {"logprob": -3}}, {"6": {"logprob": -1.0}}],
            },
        ),
        ("sglang", {"meta_info": {"output_token_logprobs": [[-0.5, 5, None], [-1.0, 6, "a\u2028b"]]}}),
        ("trl", {"prompt_ids": [[1]], "completion_ids": [[5, 6]], "logprobs": [[-0.5, -1.0]]}),
        (
            "trl",
            {
                "completion_ids": [[5, 6]],
                "logprobs": [[[-0.5, -3.0], [-0.1, -1.0]]],
                "logprob_token_ids": [[[5, 9], [9, 6]]],
            },
        ),
    ],
)
def test_forms_of_programs_are_read(tmp_path, form, line):
    (tmp_path / "log.jsonl").write_text(json.dumps(line | {"step": 3}, ensure_ascii=False) + "\n\n")
    found = logs.read(tmp_path / "log.jsonl", form)
    assert [x.tolist() for x in (*found.tokens, *found.logprobs)] == [[5, 6], [-0.5, -1.0]] and found.steps == [3]


def test_matrix_begins_with_bf16_and_is_computed_once(engines, tmp_path, capsys, eager):
    words = (
        "matrix",
        *SMALL,
        "--recipe",
        "te-current",
        "--recipe",
        "te-block",
        "--report",
        "m.json",
        "--report",
        "m.html",
    )
    assert engines(*words) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:16])) <= 80 and out.index("trainer bf16") < out.index("trainer te-current")
    first = json.loads((tmp_path / "m.json").read_text())
    names = ["bf16", "te-current", "te-block"]
    assert [(p["trainer"], p["engine"]) for p in first["pairs"]] == [(a, b) for a in names for b in names]
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / ".parity/engines").glob("*.pt")}
    assert engines(*words) == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / ".parity/engines").glob("*.pt")} == kept and len(kept) == 5
    again = json.loads((tmp_path / "m.json").read_text())
    assert (again["pairs"], again["variants"]) == (first["pairs"], first["variants"])
    by = {(v["recipe"], v["variant"]): v[MEAN]["value"] for v in first["variants"]}
    assert by["te-current", "batch"] > 0 == by["te-block", "batch"], "a scale of the tensor sees the batch"


def test_matrix_of_a_hugging_face_folder(engines, tmp_path, capsys, eager):
    folder = qwen3(tmp_path / "qwen3")
    sizes = ("--sequences", "64", "--prompt", "8", "--length", "20", "--device", "cpu")
    assert engines("matrix", "--hf", folder, *sizes, "--recipe", "te-block", "--report", "m.json") == 0
    found = json.loads((tmp_path / "m.json").read_text())
    pairs = {(p["trainer"], p["engine"]): p[MEAN]["value"] for p in found["pairs"]}
    assert 0 < pairs["bf16", "bf16"] < pairs["te-block", "bf16"] < 1
    assert engines("matrix", "--hf", tmp_path, *sizes) == 2
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("matrix", "--model", "micr"), "did you mean micro"),
        (("matrix", "--recipe", "te-curent"), "did you mean te-current"),
        (("matrix", "--sequences", "40"), "multiples of 32"),
        (("matrix", "--prompt", "200"), "shorter than --length"),
        (("matrix", "--steps", "500"), "--steps 500: the schedule of micro has 2 to 300"),
        (("matrix", "--report", "m.pdf"), "no renderer for '.pdf'"),
        (("judge", "a", "b", "--allowed", "-1"), "--allowed -1.0: must be above 0"),
    ],
)
def test_wrong_arguments(engines, capsys, words, message):
    assert engines(*words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", [r.name for r in RECIPES.values() if not r.base])
def test_rows_change_where_scales_see_other_rows(name, eager):
    """The theory of each GEMM is what is measured. Powers of two change only what underflows, in one of a few rows."""
    if RECIPES[name].adapter == "torchao":
        pytest.importorskip("torchao")
    execution = Execution.EMULATED if name != "bf16" else Execution.NATIVE
    found = invariance.measure(RECIPES[name], execution, CPU)
    for gemm in ("fprop", "dgrad", "wgrad"):
        equal = all(found[gemm, batch] == math.inf for batch in invariance.BATCHES)
        assert invariance.theory(RECIPES[name], gemm).startswith("yes" if equal else "no"), gemm


def test_invariance_command_prints_a_row_for_each_gemm(engines, capsys, eager, monkeypatch):
    monkeypatch.setattr(invariance, "DRAWS", 1)
    assert engines("invariance", "--recipe", "te-current", "--device", "cpu") == 0
    out = capsys.readouterr().out
    assert "3 of 6 GEMMs give a row the same bits" in out and "no: a scale of the tensor" in out


@pytest.fixture(scope="session")
def plan(tmp_path_factory) -> measured.Plan:
    return measured.Plan(40, 64, 16, 64, 0, CPU, tmp_path_factory.mktemp("engines"))


@pytest.mark.slow
@pytest.mark.parametrize("name", engine_faults.FAULTS)
def test_planted_fault_is_seen(name, plan, eager, monkeypatch):
    """In fewer tokens and a shorter training than the page's, so more tokens are misrouted, and sines in BF16 change too little."""
    monkeypatch.setattr(engine_faults, "MISROUTED", 100)
    recipes = engine_faults.FAULTS[name].recipes
    found = engine_faults.compare(name, "te-block" if "te-block" in recipes else recipes[0], plan)
    assert any(row.number != row.baseline for row in found.rows)
    assert found.seen or "sines" in name, found.rows
