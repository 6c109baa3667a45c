"""The script that times a step at several sequence lengths: the tokens of a step stay, and each length has a record of its own."""

from __future__ import annotations

import sequence_lengths
import torch
from fp8parity.prediction.residuals import measured
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.storage import name_of
from fp8parity.workload.schedule import TIMED, Schedule
from timings import made


def test_each_length_has_its_rows_and_its_name(monkeypatch):
    asked: list[Schedule] = []

    def training_step(config, recipe, execution, schedule, corpus, device, mode):
        asked.append(schedule)
        cell = Cell(model=config.name, recipe=recipe.name, execution=execution, corpus=corpus.name)
        return made(cell=cell, tokens=schedule.tokens, attention="cudnn first", optimizer="compiled AdamW", mode=mode)

    monkeypatch.setattr(sequence_lengths.steps, "training_step", training_step)
    monkeypatch.setattr(sequence_lengths.steps, "timed", lambda step, *_: step)
    lengths = (512, 2048, 32_768)
    terms = sequence_lengths.Asked(
        "1b", "te-current", Execution.FUSED, TIMED["1b"].schedule.tokens, Mode.COMPILED_GRAPHED, 6
    )
    records = [sequence_lengths.timed(terms, n, torch.device("cpu")) for n in lengths]
    assert [(s.rows, s.length) for s in asked] == [(32, 512), (8, 2048), (1, 32_768)]
    assert [r.variant for r in records] == ["32x512", "", "1x32768"]
    assert len({name_of(r) for r in records}) == 3
    for record, n in zip(records, lengths, strict=True):
        cell = measured(record)
        assert cell is not None and cell.work.sequence == n and cell.work.tokens == max(n, TIMED["1b"].schedule.tokens)


def test_a_line_has_ratio_interval_and_memory():
    text = sequence_lengths.line(made(), 512)
    assert text.startswith("   512 te-current native    1.200x [1.19") and "BF16 20.0 GiB" in text
