"""Kinds of logs that people really have: epochs, ranks, NaN, zeros, cut files, layouts and encodings, and their verdicts."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from curves import curve
from fp8parity import runs
from fp8parity.cli import main

N = 200
BF16, FP8 = curve(steps=N), curve(steps=N, chaos=1)
Text = Callable[[list[float]], str]


def text_of(form: str, first: int = 0, before: str = "") -> Text:
    return lambda losses: (
        before + "".join(form.format(s=s, x=x, p=s % 100, e=s // 100) for s, x in enumerate(losses, first))
    )


def json_of(make: Callable[[list[float]], object]) -> Text:
    return lambda losses: json.dumps(make(losses))


def state(losses: list[float], norms: float = 1.0) -> dict[str, Any]:
    return {"log_history": [{"step": s, "loss": round(x, 4), "grad_norm": norms} for s, x in enumerate(losses, 1)]}


def golden(values: object) -> dict[str, Any]:
    return {"start_step": 0, "end_step": N, "step_interval": 1, "values": values}


HEAD = "".join(f"loading shard {i} of 4000 took {i / 7:.3f} s, 12 tensors\n" for i in range(8000))
LAYOUTS: dict[str, tuple[str, Text, int]] = {
    "epochs": ("a.csv", text_of("{e},{p},{x}\n", before="epoch,step,loss\n"), 0),
    "epochs by samples": ("a.csv", text_of("{s}00,{p},{x}\n", before="consumed_samples,step,loss\n"), 0),
    "epochs by time": ("a.jsonl", text_of('{{"step": {p}, "elapsed": {s}.5, "loss": {x}}}\n'), 0),
    "epochs, printed": ("a.log", text_of("Epoch {e} | step {p}/100 | loss {x:.6f}\n"), 0),
    "long start-up": ("a.log", text_of("step {s} loss {x:.6f}\n", before=HEAD), 0),
    "CSV in .txt": ("a.txt", text_of("{s}, {x:.6f}, 1e-3\n", before="step, loss, lr\n"), 0),
    "CSV in .jsonl": ("a.jsonl", text_of("{s},{x}\n", before="iteration,train_loss\n"), 0),
    "JSON lines in .log": ("a.log", text_of('{{"step": {s}, "split": "train", "loss": {x}}}\n'), 0),
    "JSON lines in .csv": ("a.csv", text_of('{{"num_updates": {s}, "loss": {x}}}\n'), 0),
    "JSON list in .jsonl": ("a.jsonl", json_of(lambda xs: [{"_step": s, "train/loss": x} for s, x in enumerate(xs)]), 0),
    "summary after JSON lines": (
        "a.jsonl",
        lambda xs: text_of('{{"loss": {x}, "iteration": "{s}/200"}}\n', 1)(xs) + json.dumps({"log_history": state(xs)["log_history"]}),
        1,
    ),
    "nested rows": ("a.jsonl", text_of('{{"step": {s}, "data": {{"train/loss": {x}, "val": {{"loss": 9}}}}}}\n'), 0),
    "semicolons": ("a.csv", text_of("{s};{x};1e-3\n", before="step;loss;lr\n"), 0),
    "TensorBoard's CSV": ("a.csv", text_of("1700000000.5,{s},{x}\n", before="Wall time,Step,Value\n"), 0),
    "TensorBoard's JSON": ("a.json", json_of(lambda xs: [[1.7e9, s, x] for s, x in enumerate(xs)]), 0),
    "golden": ("a.json", json_of(lambda xs: {"lm loss": golden({str(s): x for s, x in enumerate(xs)})}), 0),
    "golden with a list": ("a.json", json_of(lambda xs: {"lm loss": golden(xs), "num-zeros": golden([1] * N)}), 0),
    "golden of one metric": ("a.json", json_of(lambda xs: {"start_step": 1, "step_interval": 1, "loss_values": xs}), 1),
    "golden by step": ("a.json", json_of(lambda xs: {str(s): {"lm loss": x, "x": 1} for s, x in enumerate(xs)}), 0),
    "columns": ("a.json", json_of(lambda xs: {"step": list(range(N)), "loss": xs, "config": [1, 2]}), 0),
    "pandas": ("a.json", json_of(lambda xs: {"loss": {str(s): x for s, x in enumerate(xs)}}), 0),
    "pandas, split": ("a.json", json_of(lambda xs: {"columns": ["step", "loss"], "data": [*map(list, enumerate(xs))]}), 0),
    "a table in an object": ("a.json", json_of(lambda xs: {"config": {"lr": 1}, "history": [{"step": s, "loss": x} for s, x in enumerate(xs)]}), 0),
    "long table": ("a.csv", lambda xs: "key,step,value\n" + "".join(f"loss,{s},{x}\nlr,{s},0.1\n" for s, x in enumerate(xs)), 0),
    "pretty objects": ("a.log", lambda xs: "".join(json.dumps({"step": s, "loss": x}, indent=1) + "\n" for s, x in enumerate(xs)), 0),
    "a validation of each step": ("a.jsonl", text_of('{{"step": {s}, "split": "train", "loss": {x}}}\n{{"step": {s}, "split": "val", "loss": 9}}\n'), 0),
    "a summary row": ("a.jsonl", lambda xs: text_of('{{"step": {s}, "loss": {x}, "lr": 1}}\n')(xs) + '{"step": 199, "train_loss": 5, "train_runtime": 9}\n', 0),
    "each row eight times": ("a.jsonl", lambda xs: "".join(f'{{"step": {s}, "loss": {x}}}\n' * 8 for s, x in enumerate(xs)), 0),
    "equal ranks, printed": ("a.log", lambda xs: "".join(f"[rank{r}]: step {s} loss {x}\n" for s, x in enumerate(xs) for r in range(8)), 0),
    "ranks": ("a.jsonl", lambda xs: "".join(f'{{"step": {s}, "rank": {r}, "loss": {x + r - 3.5}}}\n' for s, x in enumerate(xs) for r in range(8)), 0),
    "ranks one after the other": ("a.log", lambda xs: "".join(f"{r}: step {s} loss {x + r - 1.5:.6f}\n" for r in range(4) for s, x in enumerate(xs)), 0),
    "microbatches": ("a.jsonl", lambda xs: "".join(f'{{"step": {s}, "micro_step": {m}, "loss": {x + m - 0.5}}}\n' for s, x in enumerate(xs) for m in range(2)), 0),
}  # fmt: skip


ASKED = {
    **dict.fromkeys([name for name in LAYOUTS if name.startswith("epochs")], ("restarts", "join")),
    **dict.fromkeys(["ranks", "ranks one after the other", "microbatches"], ("rank", "mean")),
}
"""Layout -> the option without which it may be several series."""


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_content_decides_how_a_log_is_read(name, tmp_path):
    file, write, first = LAYOUTS[name]
    path = put(tmp_path / file, write(BF16.loss))
    option, value = ASKED.get(name, ("", ""))
    run = runs.read(path, **({option: value} if option else {}))  # type: ignore[arg-type]
    assert run.points == list(range(first, first + N)) and (run.replaced, run.not_finite, run.empty) == (0, [], [])
    assert run.loss == pytest.approx(BF16.loss, abs=1e-4)
    if option:
        with pytest.raises(ValueError, match=f"--{option} {value}"):
            runs.read(path)


NAN = math.nan
BROKEN = {
    "infinite from the first step": [math.inf] * N,
    "stopped at it": [*FP8.loss[:120], *[NAN] * 3],
    "in the first epoch": [*FP8.loss[:50], NAN, *FP8.loss[51:]],
}
WRITERS: dict[str, tuple[str, Callable[[float], str], Text]] = {
    "JSON": ("a.jsonl", lambda x: "NaN" if x != x else str(x), text_of('{{"step": {s}, "loss": {x}}}\n')),
    "empty cell": ("a.csv", lambda x: str(x) if math.isfinite(x) else "", text_of("{s},{x},1e-3\n", before="step,loss,lr\n")),
    "printed": ("a.log", str, text_of("step: {s} | loss: {x} | lr: 1e-3\n")),
    "epochs": ("a.csv", str, text_of("{e},{p},{x}\n", before="epoch,step,loss\n")),
    "zero": (
        "a.json",
        lambda x: str(x) if math.isfinite(x) else "0.0",
        lambda xs: json.dumps({"log_history": [{"step": s, "loss": float(x)} for s, x in enumerate(xs)]}),
    ),
    "left out by Megatron": (
        "a.log",
        lambda x: f"lm loss: {x} |" if math.isfinite(x) else "",
        lambda xs: "".join(
            f" iteration {s}/ 200 | consumed samples: {s} | learning rate: 1E-3 | {x} loss scale: 1.0 | grad norm: 1.0 | "
            f"number of nan iterations: {int(not x)} |\n"
            for s, x in enumerate(xs)
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("losses", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("writer", WRITERS)
def test_nan_of_fp8_fails_with_its_step(writer, losses, tmp_path, capsys):
    file, show, write = WRITERS[writer]
    pair = [put(tmp_path / side / file, write([show(x) for x in xs])) for side, xs in (("a", BF16.loss), ("b", losses))]  # type: ignore[misc]
    options = ["--unfiltered", "--restarts=join"] if writer == "epochs" else ["--unfiltered"]
    assert main(["verdict", *options, *map(str, pair)]) == 1
    first = next(s for s, x in enumerate(losses) if not math.isfinite(x))
    assert f"at step {first} (" in capsys.readouterr().out.splitlines()[0]
    assert main(["verdict", *options, *map(str, pair[::-1])]) == 2


@pytest.mark.parametrize(("last", "norm", "code"), [(2e-4, 1.0, 2), (2.5, 1.0, 1), (2e-4, NAN, 1)])
def test_zero_is_nan_only_far_from_bf16_or_without_a_norm(last, norm, code, tmp_path):
    bf16, fp8 = ([*made.loss[:150], *[end] * 50] for made, end in ((BF16, last), (FP8, 0.0)))
    a = put(tmp_path / "a.json", json.dumps(state(bf16)))
    b = put(tmp_path / "b.json", json.dumps(state(fp8, norm)))
    assert main(["verdict", str(a), str(b)]) == code


@pytest.mark.parametrize(
    "form", ["step {} | loss {:.5f} | grad_norm 1.00\n", '{{"step": {}, "loss": {:.5f}}}\n', "{},{:.5f},1\n"]
)
def test_last_line_that_was_cut_does_not_count(form, tmp_path):
    before = "step,loss,grad_norm\n" if form.startswith("{},") else ""
    lines = [form.format(s, x) for s, x in enumerate(BF16.loss)]
    at = lines[-1].index("9") + 3
    for end in range(at + 1, len(lines[-1]) - 1):
        path = put(tmp_path / "run.log", before + "".join(lines[:-1]) + lines[-1][:end])
        run = runs.read(path)
        assert len(run.points) in (N - 1, N) and (run.not_finite, run.empty) == ([], [])
        assert run.loss == pytest.approx(BF16.loss[: len(run.points)], abs=1e-5)


def test_line_of_a_killed_process_is_left_out(tmp_path):
    lines = [f'{{"step": {s}, "loss": {x}}}\n' for s, x in enumerate(BF16.loss)]
    path = put(tmp_path / "a.jsonl", "".join([*lines[:120], lines[120][:22], *lines[110:]]))
    run = runs.read(path, restarts="replace")
    assert (len(run.points), run.replaced, run.notes) == (N, 9, ["1 incomplete lines are left out"])
    assert run.loss == BF16.loss


REFUSED = [
    ("{p},{x}\n", "step,loss\n", [], "--restarts join if each epoch counts"),
    ('{{"step": {s}, "loss": {x}}}\n{{"step": {s}, "loss": 9.5}}\n', "", [], "have different losses"),
    ("step {s} a_loss {x} b_loss {x}1\n", "", [], "several keys may be the loss (a_loss, b_loss)"),
    ("step {s} loss {x}\n", "", ["--loss", "no such key"], "unknown key of a loss 'no such key'"),
    ("step {s} loss {x}\n", "", ["--step", "no such key"], "unknown key of a step 'no such key'"),
]


@pytest.mark.parametrize(("form", "before", "options", "says"), REFUSED)
def test_ambiguity_is_refused_with_the_candidates(form, before, options, says, tmp_path, capsys):
    a, b = (put(tmp_path / side, text_of(form, before=before)(made.loss)) for side, made in (("a", BF16), ("b", FP8)))
    assert main(["verdict", str(a), str(b), *options]) == 2
    assert says in capsys.readouterr().err


def test_keys_that_the_user_names_are_used_and_shown(tmp_path, capsys):
    text = text_of("{s},{x},7,{e},{p}\n", before="my step,my value,loss,epoch,step\n")
    a, b = (put(tmp_path / side, text(made.loss)) for side, made in (("a", BF16), ("b", FP8)))
    assert main(["verdict", str(a), str(b), "--loss", "my value", "--step", "my_step"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert all('step "my step", loss "my value", 200 points' in line for line in out[1:3])


def test_counters_from_0_and_from_1_are_shifted(tmp_path, capsys):
    a, b = (
        put(tmp_path / side, text_of("step {s} loss {x:.6f}\n", first)(made.loss))
        for side, made, first in (("a", BF16, 0), ("b", FP8, 1))
    )
    assert main(["verdict", str(a), str(b)]) == 0
    assert "BF16 counts its steps from 0, FP8 from 1: FP8 is shifted by one" in capsys.readouterr().out
    assert main(["verdict", str(b), str(a)]) == 0


def test_nan_of_a_golden_is_not_logged(tmp_path):
    values = {str(s): "nan" if s % 5 else x for s, x in enumerate(BF16.loss)}
    run = runs.read(put(tmp_path / "a.json", json.dumps({"lm loss": golden(values)})))
    assert (run.not_finite, run.points) == ([], list(range(0, N, 5)))


ENCODED: dict[str, Callable[[bytes], bytes]] = {
    "byte-order mark": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "gzip": gzip.compress,
    "carriage returns": lambda text: text.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("encode", ENCODED.values(), ids=ENCODED)
@pytest.mark.parametrize(
    ("form", "before"),
    [("{s},{x}\n", "step,loss\n"), ('{{"step": {s}, "loss": {x}}}\n', ""), ("step {s} loss {x}\n", "")],
)
def test_encodings_and_standard_input_are_read(encode, form, before, tmp_path, monkeypatch):
    content = encode(text_of(form, before=before)(BF16.loss).encode())
    (tmp_path / "run").write_bytes(content)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=pipe.write_bytes, args=(content,))
    thread.start()
    for path in (tmp_path / "run", Path("-"), pipe):
        assert runs.read(path).loss == BF16.loss
    thread.join()
