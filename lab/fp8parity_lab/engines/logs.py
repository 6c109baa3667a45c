"""Read log-probabilities of sequences from JSON lines, as engines and trainers write them. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fp8parity_lab.engines.scores import Floats, Ints, Scores


class Form(NamedTuple):
    """How a program writes sequences: its fields, and what reads (ids, log-probabilities) of a line."""

    fields: str
    read: Callable[[Any], Iterable[tuple[Any, Any]]]


def _vllm(line: Any) -> Iterable[tuple[Any, Any]]:
    ids = line["token_ids"]
    return [(ids, [at[str(i)]["logprob"] for i, at in zip(ids, line["logprobs"], strict=True)])]


def _sglang(line: Any) -> Iterable[tuple[Any, Any]]:
    found = line["meta_info"]["output_token_logprobs"]
    return [([token for _, token, _ in found], [value for value, _, _ in found])]


def _trl(line: Any) -> Iterable[tuple[Any, Any]]:
    if line.get("logprob_token_ids") is None:
        return zip(line["completion_ids"], line["logprobs"], strict=True)
    rows = zip(line["completion_ids"], line["logprobs"], line["logprob_token_ids"], strict=True)
    return [(own, [at[of.index(i)] for i, at, of in zip(own, found, ids, strict=True)]) for own, found, ids in rows]


FORMS = {
    "plain": Form("token_ids: [...], logprobs: [...]", lambda line: [(line["token_ids"], line["logprobs"])]),
    "vllm": Form("token_ids: [...], logprobs: [{ID: {logprob: ...}}, ...]", _vllm),
    "sglang": Form("meta_info.output_token_logprobs: [[logprob, id, text], ...]", _sglang),
    "trl": Form("completion_ids: [[...], ...], logprobs: [[...], ...]", _trl),
}
"""The forms by program: vLLM's CompletionOutput, SGLang's /generate, trl's rollouts of several sequences. A line may
also have a ``step``."""


def read(path: Path, form: str) -> Scores:
    """Read the sequences of a file. Raises ``ValueError`` with the sequence, and ``OSError``."""
    tokens, logprobs, steps = list[Ints](), list[Floats](), []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            found = json.loads(line)
            rows = list(FORMS[form].read(found))
            step = found.get("step")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{where} is not of the form {form}, {FORMS[form].fields}: {error!r}") from error
        for ids, values in rows:
            _check(f"{path}: sequence {len(tokens)} (line {number})", ids, values, step)
            tokens.append(np.array(ids, dtype=np.int64))
            logprobs.append(np.array(values, dtype=np.float64))
            steps.append(step)
    if not tokens:
        raise ValueError(f"{path}: no sequences")
    known = [step for step in steps if step is not None]
    if known and len(known) < len(steps):
        raise ValueError(f"{path}: sequence {steps.index(None)} has no step, and others have one")
    return Scores(tokens, logprobs, steps=known)


def _check(where: str, ids: Any, values: Any, step: Any) -> None:
    if not (isinstance(ids, list) and isinstance(values, list) and ids):
        raise ValueError(f"{where} is empty, or no list; leave it out of both files")
    if len(ids) != len(values):
        raise ValueError(f"{where}: {len(ids)} tokens and {len(values)} log-probabilities")
    if step is not None and type(step) is not int:
        raise ValueError(f"{where}: step {step!r} is no whole number")
    for i, (token, value) in enumerate(zip(ids, values, strict=True)):
        if type(token) is not int:
            raise ValueError(f"{where}: token {i} is {token!r}, which is no id")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{where}: the log-probability of token {i} is {value!r}, which is no finite number")
        if value > 0:
            raise ValueError(f"{where}: the log-probability of token {i} is {value}, above 0")
