"""policy.toml: which rows judge a number, what a row may hold, named faults, and folders that add to the shipped."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sessions
from fp8parity import shipped
from fp8parity.judging import policy, references
from fp8parity.judging.policy import GemmRow, GoldenRow, LossRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Band, Rule, Trend
from fp8parity.judging.policy.selectors import Alike, Row, inherited
from fp8parity.judging.references.limits import allowed_of
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.table import Allowed, Judged, Place
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement
from narrowed import some

WHY = "a made-up row"
LEAST: dict[type[Row], dict[str, Any]] = {
    LossRow: {"margin": 0.005},
    GoldenRow: {"least_seeds": 8},
    SpeedRow: {"band": 0.05, "memory_band": 0.05},
    GemmRow: {"band": 0.1, "place_band": 0.1, "error": 0.1, "bf16_error": 0.01, "error_band": 0.1},
    Rule: {"check": "gemm", "low": 0.0, "high": 1.0},
    Trend: {"check": "gemm", "slack": 0.1},
    Band: {"check": "gemm", "band": 0.1},
}
"""What each row must hold."""


def row(kind: type[Row], **given: object) -> Any:
    return kind.model_validate({**LEAST[kind], "why": WHY, **given})


CELL = Cell(model="nano", recipe="te-current", execution=Execution.NATIVE)
NUMBER = Measurement(metric="fprop sqnr", where="gaussian", value=28.5)


def rule(low: float, high: float, **selects: object) -> Rule:
    return Rule.model_validate({"check": "gemm", "low": low, "high": high, "why": WHY, **selects})


def band(width: float, **selects: object) -> Band:
    return Band.model_validate({"check": "gemm", "band": width, "why": WHY, **selects})


def made(*rows: Rule | Band) -> Policy:
    rules, bands = tuple(r for r in rows if isinstance(r, Rule)), tuple(r for r in rows if isinstance(r, Band))
    return Policy(path=Path("policy.toml"), rule=rules, band=bands)


def stored(value: float, execution: Execution = Execution.NATIVE, table: str = "shared") -> MeasuredNumbers:
    key = NumberKey.of(CELL, "gemm", NUMBER)._replace(execution=execution)
    return MeasuredNumbers({table: {key: Number(value, "set1")}})


def found(rows: Policy, numbers: MeasuredNumbers | None = None, cell: Cell = CELL) -> Allowed | None:
    return allowed_of(rows, numbers or MeasuredNumbers(), cell, "gemm", "NVIDIA H200")(NUMBER)


class TestSelection:
    def test_last_rule_and_band_win(self):
        both = made(rule(0, 99), rule(28, 29, recipe="te-current"), band(2, recipe="te-current"), band(0.5))
        assert some(both.rows_for(CELL, "gemm").lookup(NUMBER)[0]).low == 28
        assert some(both.rows_for(CELL.model_copy(update={"recipe": "x"}), "gemm").lookup(NUMBER)[0]).low == 0
        assert some(both.rows_for(CELL, "gemm").lookup(NUMBER)[1]).band == 0.5

    @pytest.mark.parametrize(
        ("table", "kind"), [("loss", LossRow), ("golden", GoldenRow), ("speed", SpeedRow), ("gemm", GemmRow)]
    )
    def test_last_row_of_a_table_wins(self, table, kind):
        narrow, wide = row(kind, model="nano"), row(kind)

        def chosen(*rows):
            return getattr(Policy.model_validate({"path": Path("p"), table: rows}), f"{table}_row")(CELL)

        assert chosen(wide, narrow) is narrow and chosen(narrow, wide) is wide
        with pytest.raises(ValueError, match=rf"^p: no \[\[{table}\]\] row selects te-current-nano-native"):
            chosen(row(kind, model="other"))

    @pytest.mark.parametrize(
        "selects",
        [
            {"recipe": ["te-block", "te-mxfp8"]}, {"model": "tiny"}, {"execution": "emulated"}, {"corpus": "text:x"},
            {"metric": "dgrad sqnr"}, {"where": "zero-row"}, {"check": "large"},
        ],
    )  # fmt: skip
    def test_row_of_another_selection_does_not_apply(self, selects):
        assert made(rule(0, 1, **selects), band(1, **selects)).rows_for(CELL, "gemm").lookup(NUMBER) == (None, None)

    def test_row_of_a_base_selects_the_recipes_that_are_alike(self):
        alike = (Alike(recipe=("b", "c"), base="a", why=WHY), Alike(recipe=("z",), base="x", why=WHY))
        rows = [row(LossRow, recipe=names) for names in (("a",), ("a", "c"), ("d",), ())]
        assert [r.recipe for r in inherited(rows, alike)] == [("a", "b", "c"), ("a", "c", "b"), ("d",), ()]


class TestLimits:
    @pytest.mark.parametrize(
        ("rows", "number", "expected"),
        [
            ((rule(28, 29),), None, (28, 29, None)),
            ((rule(28, 29), band(0.25)), 28.5, (28.25, 28.75, None)),
            ((rule(28, 29), band(0.25)), 28.9, (28.65, 29, None)),
            ((rule(28, 29), band(0.25)), 30, (29.75, 29, None)),  # allows nothing
            ((rule(28, 29), band(0.25)), None, (28, 29, "")),
            ((band(0.25),), 28.5, (28.25, 28.75, None)),
            ((band(0.25),), None, (-math.inf, math.inf, "")),
        ],
    )
    def test_limits_are_the_intersection_of_rule_and_band(self, rows, number, expected):
        range_ = some(found(made(*rows), number and stored(number)))
        assert (range_.low, range_.high, range_.unmeasured) == pytest.approx(expected)

    def test_limits_without_a_row_are_none(self):
        assert found(made()) is None

    def test_ratio_is_1_at_either_edge(self):
        of = partial(Judged, cell=CELL, check="gemm", metric="m", low=28, high=29, status=Place.INSIDE)
        assert [of(value=v).ratio for v in (28, 28.5, 29, 30, math.nan)] == [1, 0, 1, 3, math.inf]
        assert not some(found(made(rule(28, 29)))).allows(math.nan)


SMALL, NEAR = 1e-9, 1e-6
HALF = (SMALL, 0.5 - NEAR), (0, 0.5)


@pytest.mark.parametrize(
    ("kind", "key", "inside", "outside"),
    [
        (LossRow, "margin", (SMALL, 0.2 - NEAR), (0, 0.2)),
        (LossRow, "min_step_band", *HALF),
        (LossRow, "min_loss_drop", (0, 1 - NEAR), (-NEAR, 1)),
        (LossRow, "seeds", ((2,), (2, 3), (3, 5, 8)), ((), (1,), (1, 2), (3, 3), (5, 3))),
        (GoldenRow, "replicas", (0,), (-1,)),
        *((kind, "band", *HALF) for kind in (SpeedRow, GemmRow)),
        (GemmRow, "place_band", *HALF),
        (GemmRow, "error", (SMALL, 1 - NEAR), (0, 1)),
        (Rule, "low", (-5.0, 1.0), (1 + NEAR,)),
        (Trend, "slack", (0,), (-NEAR,)),
        (Band, "band", (SMALL,), (0,)),
    ],
)
def test_number_of_a_row_has_a_range(kind, key, inside, outside):
    for value in inside:
        assert getattr(row(kind, **{key: value}), key) == value
    for value in outside:
        with pytest.raises(ValueError, match="1 validation error"):
            row(kind, **{key: value})


LOSS = '[[loss]]\nmargin = 0.005\nwhy = "long enough"\n'
RULE = '[[rule]]\ncheck = "a"\nmetric = "b"\nwhy = "long enough"\n'
COMPLETE = '[[complete]]\ncheck = "a"\nwhy = "long enough"\n'


def load(folder: Path, text: str) -> Policy:
    (folder / policy.FILE).write_text(text)
    return policy.load(folder, sessions.DAY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[loss]\n", "policy.toml: .*line 1"),
        ("[[los]]\n", "policy.toml: unknown table 'los'; known: extends, alike, equal, loss"),
        ("loss = [1]\n", r"'loss' is not a table of rows; write each row below a line \[\[loss\]\]"),
        ("[[loss]]\nmargn = 0.005\n", r"policy.toml:1: \[\[loss\]\] unknown key 'margn': did you mean margin"),
        ("[[loss]]\nwritten = 3\n", r"policy.toml:1: \[\[loss\]\] unknown key 'written'"),
        (COMPLETE + 'number = [{ metrc = "b" }]', r"policy.toml:1: \[\[complete\]\] unknown key 'metrc': did you mean metric"),
        (RULE + "number = [{ lo = 1 }]\n", r"policy.toml:1: \[\[rule\]\] unknown key 'lo': did you mean low"),
        (LOSS.replace("long enough", "9 letters"), r"policy.toml:1: \[\[loss\]\] key why: .* at least 10 characters"),
        (LOSS + "seeds = [1, 2]\n", r"policy.toml:1: \[\[loss\]\] key \(row\): .*seeds must grow and start at 2 or more"),
        (LOSS + RULE + "low = 1\n", r"policy.toml:4: \[\[rule\]\] key high: Field required"),
        (LOSS + RULE + "low = 2\nhigh = 1\n", "policy.toml:4: .* low 2.0 is above high 1.0"),
        (RULE.replace('metric = "b"', "always = true") + "low = 0\nhigh = 1\n", "always needs the metrics that a record must hold"),
        (COMPLETE, r"\[\[complete\]\] key number: Field required"),
        (RULE.replace('"b"', '"[fd]prop"') + "low = 0\nhigh = 1\n", "is a pattern; list the names"),
    ],
)  # fmt: skip
def test_fault_of_the_file_is_named_with_line_and_key(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)


def test_row_of_several_numbers_is_as_several_rows(tmp_path):
    several = (
        'number = [{ metric = "b", low = 0, high = 1 }, { where = ["x", "y"], low = 2, high = 3, always = true }]\n'
    )
    first, second = load(tmp_path, RULE + several).rule
    assert (first.metric, first.where, first.low, first.high, first.always) == (("b",), (), 0, 1, False)
    assert (second.metric, second.where, second.low, second.high, second.always) == (("b",), ("x", "y"), 2, 3, True)
    assert first.why == second.why == "long enough" and first.check == second.check == ("a",)
    assert first.written == second.written == 1


def test_with_seeds_replaces_the_stages(tmp_path):
    rows = load(tmp_path, LOSS)
    assert rows.with_seeds(4).loss[0].seeds == (4,)
    assert rows.loss[0].within(4).seeds == (3, 4)


EXTENDS = '[[extends]]\ngoldens = "shipped"\n'
OWN = '[[loss]]\nmodel = "mine"\nmargin = 0.02\nseeds = [2, 3]\nwhy = "a model of my own"\n'
HEADER = "check,metric,where,model,recipe,execution,value,source\n"
SOURCES = "source,records,device,packages,sha256\nabc,mine.zip,my GPU,torch 9,abcdef\n"


def of_model(model: str) -> Cell:
    return Cell(model=model, recipe="te-current", execution=Execution.NATIVE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / policy.FILE).write_text(EXTENDS + OWN)
    return tmp_path


def test_own_rows_follow_the_shipped_ones(folder):
    mine, shipped = policy.load(folder, sessions.DAY), sessions.stored()[1]
    assert mine.loss_row(of_model("mine")).margin == 0.02
    assert mine.loss_row(of_model("tiny")) == shipped.loss_row(of_model("tiny"))
    assert (mine.rule, mine.band) == (shipped.rule, shipped.band)
    assert (
        mine.known is not None and shipped.known is not None and str(mine.known.entries) == str(shipped.known.entries)
    )


def test_an_own_file_replaces_the_shipped_one(folder):
    (folder / "known_failures.toml").write_text("")
    known = policy.load(folder, sessions.DAY).known
    assert known is not None and known.entries == ()


def test_an_own_number_wins_over_a_shipped_one(folder):
    (folder / "numerics").mkdir()
    (folder / "numerics" / "sources.csv").write_text(SOURCES)
    (folder / "numerics" / "shared.csv").write_text(f"{HEADER}gemm,fprop sqnr,gaussian,tiny,te-current,native,20,abc\n")
    key = NumberKey("gemm", "fprop sqnr", "gaussian", "tiny", "te-current", Execution.NATIVE)
    found, shipped = references.load(folder).numbers, sessions.stored()[0].numbers

    def value(numbers: MeasuredNumbers) -> float:
        return numbers.tables["shared"][key].value

    assert value(found) == 20
    assert value(shipped) == pytest.approx(28.5, abs=0.6)
    assert len(found.tables["shared"]) == len(shipped.tables["shared"])
    assert found.inventories == shipped.inventories


def test_without_the_line_a_folder_stands_alone(folder):
    (folder / policy.FILE).write_text(OWN)
    assert policy.load(folder, sessions.DAY).rule == () and references.load(folder).loss == {}
    with pytest.raises(ValueError, match=r"no \[\[loss\]\] row selects te-current-tiny-native"):
        policy.load(folder, sessions.DAY).loss_row(of_model("tiny"))


def test_a_folder_without_a_policy_adds_to_the_shipped_one(tmp_path):
    assert policy.load(tmp_path, sessions.DAY).loss == policy.load(shipped.folder("golden"), sessions.DAY).loss
