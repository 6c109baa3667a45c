"""How the gap of two imported runs changes along them, and what is missing in two logs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from curves import (
    FORMATS,
    STEPS,
    Table,
    changed,
    judge,
    lines,
    near,
    noisy,
    pairs,
    run,
    status,
    table,
    texts,
    verdict_on,
)
from fp8parity.judging.pair import PairOptions, metrics
from fp8parity.judging.pair import gap as shape
from fp8parity.judging.pair.aligned import Pairs
from fp8parity.judging.pair.holes import holes
from fp8parity.judging.table import Judged
from fp8parity.judging.verdict import Verdict
from fp8parity.runs.run import Run
from scipy import stats


def with_gap(gap: Sequence[float] | np.ndarray, rates: Sequence[float] = (), **changes: Any) -> Pairs:
    """A pair with this gap at each point. BF16's loss is always 2."""
    fp8 = (2.0 * (1 + np.asarray(gap, dtype=float))).tolist()
    given = {"learning_rate": list(rates), **changes}
    return pairs((run([2.0] * len(fp8), **given), run(fp8, "fp8", **given)))


def stairs(*parts: tuple[int, float]) -> np.ndarray:
    """A gap of so many points at each height."""
    return np.concatenate([np.full(n, height) for n, height in parts])


TRENDS = [
    (0.0, 0.01, "growing", "fail"),
    (0.02, 0.01, "shrinking", "pass"),
    (-0.01, 0.0, "shrinking", "pass"),
    (0.002, -0.008, "growing in favor of FP8", "pass"),
    (0.0, 0.001, "constant within noise", "pass"),
]


@pytest.mark.parametrize(("before", "after", "words", "expected"), TRENDS)
def test_last_quarter_is_compared_with_the_third(before, after, words, expected):
    """Without noise along the curve, the interval is that of the published spread between equal runs."""
    found = shape.trend(with_gap(stairs((200, 0.5), (100, before), (100, after))))
    assert (len(found), status(found)) == (1, expected) and texts(found)[0].startswith(f"{words}: ")
    half, change = float(stats.t.ppf(0.95, 24)) * 0.0006, after - before
    assert (found[0].value, *(found[0].interval or ())) == pytest.approx((change, change - half, change + half))


@pytest.mark.parametrize(
    ("height", "words", "expected"),
    [(0.01, "opening in the decay", "fail"), (-0.01, "growing in favor", "pass"), (0.0, "constant within", "pass")],
)
def test_decay_is_compared_with_the_points_before_it(height, words, expected):
    found = shape.trend(with_gap(stairs((320, 0.0), (80, height)), [1.0] * 320 + [0.1] * 80))[1]
    assert (texts([found])[0].startswith(words), status([found])) == (True, expected)
    assert found.value == pytest.approx(height)


@pytest.mark.parametrize(
    ("rates", "start"),
    [
        ([1.0] * 40 + [0.5] * 60, 40),
        ([1.0] * 39 + [0.5] * 61, None),
        ([1.0] * 90 + [0.5] * 10, 90),
        ([1.0] * 91 + [0.5] * 9, None),
        ([1.0] * 30 + [0.98] * 20 + [0.5] * 50, 50),
        ([1.0] * 30 + [0.979] * 20 + [0.5] * 50, None),
        ([], None),
    ],
)
def test_decay_starts_after_the_peak_and_two_fifths(rates, start):
    assert shape.find_decay(with_gap(np.zeros(100), rates).pairs[0]) == start


def spike(size: float, first: int, last: int) -> str:
    return f"{'falls' if size < 0 else 'rises'} by {size:+.3%} from step {first} to step {last} and comes back"


def jump(size: float, step: int) -> str:
    return f"jumps by {size:+.3%} at step {step}"


JUMPS = [
    (((150, 0.0), (150, 0.01)), [jump(0.01, 151)]),
    (((60, 0.0), (240, 0.01)), []),
    (((290, 0.0), (10, 0.01)), []),
    (((100, 0.0), (100, 0.01), (100, 0.03)), [jump(0.01, 101), jump(0.02, 201)]),
    (((150, 0.0), (40, 0.01), (110, 0.03)), [jump(0.01, 151), jump(0.02, 191)]),
    (((150, 0.0), (150, 5.5e-6)), []),
    (((150, 0.0), (20, -0.01), (130, 0.0)), [spike(-0.01, 151, 170)]),
    (((100, 0.0), (50, 0.01), (150, 0.0)), [spike(0.01, 101, 150)]),
    ([*[(10, 0.005 * (i % 2)) for i in range(7)], (230, 0.05)], [jump(0.05 - 0.005 / 3, 71)]),
]


@pytest.mark.parametrize(("parts", "expected"), JUMPS)
def test_jumps_and_spikes_are_found(parts, expected):
    """30 windows of 10 points. A jump stays for three windows, comes after the first fifth and before the last window."""
    given = with_gap(stairs(*parts))
    found = given.each(shape.jumps)
    said = [text.removeprefix("the gap ") for text in texts(found)]
    assert (said, status(found)) == (expected, "pass")


@pytest.mark.parametrize(("size", "named"), [(0.05, True), (0.0026, True), (0.0024, False)])
def test_spike_above_the_margin_is_in_the_headline(size, named):
    gap = stairs((175, 0.0), (50, size), (175, 0.0))
    v = judge([run(noisy())], [run(near(gap), "fp8")], PairOptions())
    assert (v.status, "the gap rises by +" in v.headline) == ("pass", named)


def dipped(where: int, length: int, depth: float = -0.02, grows: float = 0.0) -> np.ndarray:
    """A gap of 0.1% that grows evenly, with a dip (or a spike) of so many steps from step ``where`` on."""
    gap = np.linspace(0.001, 0.001 + grows, STEPS)
    gap[where : where + length] += depth
    return gap


@pytest.mark.parametrize(
    ("gap", "margin", "status"),
    [
        (np.linspace(0.02, 0.0, STEPS), 0.01, "pass"),
        (dipped(220, 20), 0.03, "pass"),
        (dipped(320, 45, 0.02), 0.03, "pass"),
        (dipped(240, 30, -0.02, 0.006), 0.02, "fail"),
        (dipped(202, 94), 0.02, "fail"),
    ],
    ids=["shrinks", "dip", "spike", "dip in growth", "most of a quarter"],
)
def test_growth_fails_and_a_change_that_comes_back_does_not(gap, margin, status):
    v = judge([run(noisy())], [run(near(gap, noise=2), "fp8")], PairOptions(margin=margin))
    assert v.status == status and (status == "pass" or v.headline == "the gap is growing")


Row = dict[str, Any]
NONE = ["none: every point is there and finite"]


@pytest.fixture(params=FORMATS[::2])
def verdict(request, tmp_path) -> Iterator[Callable[[Table, Table], Verdict]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield partial(verdict_on, request.param, tmp_path)


NAN = [
    ({}, {"not_finite": [5, 9]}, "FP8's loss is not finite at step 5 (2 in all)", "fail"),
    ({"not_finite": [7]}, {}, "BF16's loss is not finite at step 7 (1 in all)", "inconclusive"),
    ({}, {"norm_not_finite": [6]}, "FP8's gradient norm is not finite at step 6 (1 in all)", "fail"),
    ({"norm_not_finite": [6]}, {}, "BF16's gradient norm is not finite at step 6 (1 in all)", "inconclusive"),
]


def holes_of(*pair: Run, **options: Any) -> list[Judged]:
    return [r for r in pairs(pair, options=PairOptions(**options)).each(holes) if metrics.sentence(r)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("bf16", "fp8", "headline", "expected"), NAN)
def test_nan_fails_for_fp8_and_is_inconclusive_for_bf16(bf16, fp8, headline, expected):
    pair = run(noisy(), **bf16), run(noisy(), "fp8", **fp8)
    [found] = holes_of(*pair)
    assert (metrics.headline(found), status([found])) == (headline, expected)
    assert metrics.METRICS[found.metric].precondition
    assert holes_of(*pair, until=4) == [found], "the part before a NaN is no run"


def test_filter_may_hide_a_nan_unless_one_was_seen():
    plain, hiding = run(noisy()), run(noisy(), "fp8", hides="it does")
    for pair, count in (((plain, hiding), 1), ((hiding, plain), 1), ((hiding, hiding), 2)):
        found = holes_of(*pair)
        assert [(r.metric, status([r])) for r in found] == [("hidden NaN", "inconclusive")] * count
        assert texts(holes_of(*pair, unfiltered=True)) == NONE
    seen = run(noisy(), "fp8", hides="it does", not_finite=[5])
    assert [status([r]) for r in holes_of(plain, seen)] == ["fail"]


def without(losses: list[float], lost: Collection[int], **changes: Any) -> Run:
    kept = [at for at in range(1, len(losses) + 1) if at not in lost]
    return run([losses[at - 1] for at in kept], "fp8", points=kept, **changes)


@pytest.mark.parametrize(
    ("lost", "counts"),
    [(range(342, 361), None), (range(341, 361), "20 of 96"), (range(321, 400), "79 of 143"), (range(100, 200), None)],
)
def test_tail_may_lack_a_fifth_of_its_points(lost, counts):
    losses = noisy()
    for pair in ((run(losses), without(losses, lost)), (without(losses, lost), run(losses, "b"))):
        found = [text for text in texts(holes_of(*pair)) if "points of the tail" in text]
        assert [text.startswith(f"{counts} points") for text in found] == [True] * bool(counts)


LOST: dict[str, tuple[Collection[int], str]] = {
    "a step": ([150], "150 (1 in all)"),
    "here and there in the tail": (range(300, 400, 3), "300 (34 in all)"),
}


@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
@pytest.mark.parametrize(("lost", "says"), LOST.values(), ids=LOST)
def test_nan_written_as_nothing_is_found(lost, says, metric, verdict):
    """An empty cell or a null where the other run has a value."""
    name = {"loss": "loss", "grad_norm": "gradient norm"}[metric]
    v = verdict(table(), table(1, lost, metric))
    assert (v.status, v.headline) == ("fail", f"FP8's {name} is empty at step {says}: it was not finite")
    v = verdict(table(0, lost, metric), table(1))
    assert v.status == "inconclusive" and f"BF16's {name} is empty at step {says}" in lines(v, "holes")
    assert "missing in both" not in lines(v, "holes")


def own_row(row: Row) -> Table:
    """Lightning's monitor of the learning rate writes rows of its own."""
    return [{"step": row["step"], "lr": row["lr"]}, {"step": row["step"], "loss": row["loss"]}]


def validation(row: Row) -> Table:
    """A validation has a row of the same step, with the learning rate."""
    return [row, *([{"step": row["step"], "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 0 else [])]


@pytest.mark.parametrize("change", [own_row, validation])
def test_values_that_are_logged_in_other_rows_are_no_nan(change, verdict):
    v = verdict(changed(0, change), changed(1, change))
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


TENTH = range(10, 401, 10)


def only(chaos: int, logged: Collection[int]) -> Table:
    return table(chaos, set(range(1, 401)) - set(logged), "grad_norm")


SPARSE = {
    "every tenth row of both": (only(0, TENTH), only(1, TENTH)),
    "the first rows and every tenth of FP8": (table(), only(1, [*range(1, 26), *TENTH])),
    "every tenth and every twentieth row": (only(0, TENTH), only(1, range(20, 401, 20))),
    "as the clock says": (only(0, range(7, 401, 7)), only(1, [round(5.3 * n) for n in range(1, 76)])),
    "the same rows are empty": (table(0, [3, 4, 150], "grad_norm"), table(1, [3, 4, 150], "grad_norm")),
}


@pytest.mark.parametrize("pair", SPARSE.values(), ids=SPARSE)
def test_norms_that_are_logged_at_some_rows_are_no_nan(pair, verdict):
    v = verdict(*pair)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)
    assert "nan" not in lines(v, "gradient norm")
