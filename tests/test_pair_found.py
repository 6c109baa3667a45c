"""Pairs of files that trials found accepted, or refused for a wrong reason: exit status and reason of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from fp8parity.cli import main
from scipy.signal import lfilter

COUNT = 2_000
RNG = np.random.default_rng(0)
BF16 = (2.5 + 3 * np.exp(-np.arange(COUNT) / 200)) * (1 + RNG.normal(0, 0.02, COUNT))
FP8 = BF16 * (1 + RNG.normal(0, 0.002, COUNT))
Losses = Sequence[float] | np.ndarray
NAN = np.where(np.arange(COUNT) == 900, np.nan, FP8)
INF = np.where(np.isnan(NAN), np.inf, FP8)
LAST = np.where(np.arange(COUNT) == COUNT - 1, np.nan, FP8)


def lines(losses: Losses, key: str = "loss", digits: int = 6) -> str:
    return "".join(json.dumps({"step": i, key: round(float(x), digits)}) + "\n" for i, x in enumerate(losses))


def minus_nan(losses: Losses) -> str:
    return lines(losses).replace("NaN", "-nan")


def csv(losses: Losses) -> str:
    """Without a line break at the end."""
    return "step,loss" + "".join(f"\n{i},{x:.6f}" for i, x in enumerate(losses))


def printed(losses: Losses) -> str:
    return "".join(f"iteration {i} | lm loss: {x:.6E} grad norm: 1.{i % 7}\n" for i, x in enumerate(losses))


def few(losses: Losses) -> str:
    return lines(losses, digits=3)


def filtered(losses: Losses) -> str:
    """The history of Hugging Face's Trainer as a table."""
    rows = (f"{x:.4f},1.{i % 7},1e-4,{i / COUNT},{10 * i}" for i, x in enumerate(losses))
    return "\n".join(("loss,grad_norm,learning_rate,epoch,step", *rows)) + "\n"


def other_key(losses: Losses) -> str:
    return lines(losses, "loss" if losses is BF16 else "lm loss")


def formats(losses: Losses) -> str:
    return lines(losses, digits=17) if losses is BF16 else csv(losses)


def changed(first: int, stop: int, factor: float) -> np.ndarray:
    return np.where((np.arange(COUNT) >= first) & (np.arange(COUNT) < stop), factor * FP8, FP8)


SMOOTH = lfilter([0.5], [1, -0.5], FP8, zi=[0.5 * FP8[0]])[0]
EQUAL = np.where(np.arange(COUNT) < 1200, BF16, FP8)
FOUND: dict[str, tuple[Callable[[Losses], str], Losses, int, str]] = {
    "sound": (lines, FP8, 0, "Accept"),
    "NaN in a last row without a line break": (csv, LAST, 1, "FP8's loss is not finite at step 1999"),
    "printed NaN before another key": (printed, NAN, 1, "FP8's loss is not finite at step 900"),
    "printed infinity before another key": (printed, INF, 1, "FP8's loss is not finite at step 900"),
    "-nan of C in JSON": (minus_nan, NAN, 1, "FP8's loss is not finite at step 900"),
    "filtered NaN in a table": (filtered, FP8, 2, "a NaN may be hidden"),
    "excursion in the tail": (lines, changed(1700, 1795, 1.06), 2, "the interval reaches beyond the margin"),
    "spike in the tail": (lines, changed(1700, 1712, 1.5), 0, "comes back"),
    "smoothed on one side": (lines, SMOOTH, 2, "one log is smoothed"),
    "other keys": (other_key, FP8, 2, "name the key of both with --loss KEY"),
    "equal losses of few digits": (few, EQUAL, 2, "losses in a row"),
    "few digits": (few, FP8, 0, "Accept"),
    "one run with other digits": (formats, BF16 * 1, 1, "one run was named twice"),
}


@pytest.mark.parametrize(("write", "fp8", "code", "says"), FOUND.values(), ids=FOUND)
def test_found_pair_is_judged_as_it_must_be(write, fp8, code, says, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = [str(tmp_path / name) for name in ("a.log", "b.log")]
    for name, losses in zip(names, (BF16, fp8), strict=True):
        Path(name).write_text(write(losses))
    assert (main(["verdict", *names]), says in "".join(capsys.readouterr())) == (code, True)
