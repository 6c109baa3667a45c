"""Damaged files of runs: whatever the format, the commands end with one line that names the file, and with exit status 2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from curves import curve
from fp8parity.cli import main
from fp8parity.runs import read
from log_files import WRITERS
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

CHANGED = {
    "HF, trainer_state.json of 4 decimals": ('"step"', '"stop"', "KeyError: 'step'"),
    "W&B, history": (
        '"train/global_step": 5,',
        '"train/global_step": 1e999,',
        "a step must be a whole number, not '1e999'",
    ),
    "W&B, exported chart": ("\n5,", "\ninf,", "a step must be a whole number, not 'inf'"),
    "AutoModel, training.jsonl": ('"step": 5,', '"step": Infinity,', "a step must be a whole number, not 'Infinity'"),
    "DeepSpeed, CSV": ("step,", "steps,", "KeyError: 'step'"),
    "CSV": ("\n5,", "\ninf,", "a step must be a whole number, not 'inf'"),
    "Megatron, printed": ("skipped iterations:   0", "skipped iterations: inf", "OverflowError"),
    "torchtitan, printed": ("tps: 32,768", "tps: 3.2.7", "could not convert string to float: '3.2.7'"),
    "nanochat, printed": ("dt: 500.00ms", "dt: 5.0.0ms", "could not convert string to float: '5.0.0'"),
    "nanoGPT, printed": ("time 500.00ms", "time 5.0.0ms", "could not convert string to float: '5.0.0'"),
    "AutoModel, printed": ("grad_norm 1", "grad_norm 1.2.1", "could not convert string to float: '1.2.1"),
    "Nanotron, printed": ("grad_norm: 1", "grad_norm: 1.2.1", "could not convert string to float: '1.2.1"),
}
"""Format -> a text of its file, what stands there instead, and what the message says of it."""
WRITTEN = {
    "golden.json": (
        '{"lm loss": {"step_interval": 1}}',
        "Megatron's golden: it is damaged or of another layout (KeyError: 'values')",
    ),
    "golden-list.json": ('[{"step_interval": 1}]', "Megatron's golden: "),
    "state.json": (
        '{"log_history": null}',
        "trainer_state.json: it is damaged or of another layout (TypeError",
    ),
    "deep.json": ("[" * 100_000, "JSON list: it is damaged or of another layout (RecursionError"),
    "titan.txt": (
        "".join(f"{s} 2.5\n" for s in range(30)) + "30 2.5 2.5\n",
        "steps and losses: too many values to unpack",
    ),
}
"""File -> its content, and what the message says of it."""


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    """The line of the error, without the program's name and the path."""
    assert main(["import", str(path), "--out", str(path.parent / "imported")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and not (path.parent / "imported").exists()
    assert err.startswith(f"fp8parity: {path}"), err
    return str(err)


def biggest(path: Path) -> Path:
    """The file of a run that holds its losses."""
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return max(files, key=lambda p: ("loss" in p.name, p.stat().st_size))


@pytest.mark.parametrize("format", CHANGED)
def test_a_damaged_file_is_one_line_with_its_path(format, tmp_path, capsys):
    old, new, words = CHANGED[format]
    path = WRITERS[format](tmp_path / "run", curve(steps=30))
    text = biggest(path).read_text()
    assert old in text, text[:500]
    biggest(path).write_text(text.replace(old, new))
    assert words in refused(capsys, path)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_of_another_layout_is_one_line_with_its_path(name, tmp_path, capsys):
    text, words = WRITTEN[name]
    (tmp_path / name).write_text(text)
    assert words in refused(capsys, tmp_path / name)


def test_a_tensor_that_tensorboard_cannot_read_is_one_line_with_its_path(tmp_path, capsys):
    writer = EventFileWriter(str(tmp_path / "run"))
    value = summary_pb2.Summary.Value(tag="lm loss", tensor=tensor_pb2.TensorProto(dtype=99))
    writer.add_event(event_pb2.Event(step=1, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    assert "TensorBoard: it is damaged or of another layout (TypeError" in refused(capsys, tmp_path / "run")


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("share", [0.03, 0.5, 0.97])
def test_a_file_that_ends_early_gives_no_traceback(format, share, tmp_path, capsys):
    """What is left may be a whole shorter run. ``verdict`` says how many points it has."""
    path = WRITERS[format](tmp_path / "run", curve(steps=30))
    content = biggest(path).read_bytes()
    biggest(path).write_bytes(content[: int(share * len(content))])
    code = main(["import", str(path), "--out", str(tmp_path / "imported")])
    err = capsys.readouterr().err
    assert (code, len(err.splitlines())) in ((0, 0), (2, 1)), err
    if code == 0:
        [found] = (tmp_path / "imported").glob("*.json")
        assert 0 < len(json.loads(found.read_text())["points"]) <= 30


@pytest.fixture
def events(tmp_path) -> Path:
    WRITERS["Megatron, TensorBoard"](tmp_path / "run", curve(steps=30))
    return biggest(tmp_path / "run")


@pytest.mark.parametrize("at", [0.5, 0.99])
def test_tensorboard_reads_no_further_than_a_wrong_byte_and_that_is_said(events, tmp_path, capsys, at):
    content = bytearray(events.read_bytes())
    content[int(at * len(content))] ^= 1
    events.write_bytes(content)
    words = r"tfevents\S*: record \d+ is damaged \(.*crc32 check\); TensorBoard reads no further"
    assert re.search(words, refused(capsys, tmp_path / "run"))


def test_the_whole_records_of_a_killed_run_count(events, tmp_path):
    content = events.read_bytes()
    events.write_bytes(content[: len(content) // 8])
    assert 0 < len(read(tmp_path / "run").loss) < 30
