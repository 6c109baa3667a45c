"""policy.toml as a file: its faults are named by file, line and key, and the project's own rows are whole."""

from __future__ import annotations

import re

import pytest
from fp8parity.judging import policy
from fp8parity.judging.policy import LossRow, Policy
from sessions import DAY, stored

LOSS = '[[loss]]\nmargin = 0.005\nwhy = "long enough"\n'
RULE = '[[rule]]\ncheck = "a"\nmetric = "b"\nwhy = "long enough"\n'
COMPLETE = '[[complete]]\ncheck = "a"\nwhy = "long enough"\n'
BAND = '[[band]]\ncheck = "a"\nmetric = "b"\nwhy = "long enough"\n'


def load(folder, text) -> Policy:
    (folder / "policy.toml").write_text(text)
    return policy.load(folder, DAY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[loss]\n", r"policy.toml: .*line 1"),
        ("[[los]]\n", "unknown table 'los'"),
        (LOSS + "[[loss]]\nmargin = 0.005\n", r"policy.toml:4: \[\[loss\]\] key why: Field required"),
        (LOSS.replace("long enough", "x"), r"policy.toml:1: \[\[loss\]\] key why"),
        (LOSS.replace("0.005", "-1"), r"policy.toml:1: \[\[loss\]\] key margin"),
        (
            LOSS + "seeds = [1, 2]\n",
            r"policy.toml:1: \[\[loss\]\] key \(row\): Value error, seeds must grow and start at 2 or more$",
        ),
        (LOSS + "sd_df = 4\n", r"key \(row\): Value error, sd_df needs the sd that it is about$"),
        (LOSS + "margn = 1\n", r"key margn: Extra inputs"),
        (LOSS + RULE + "low = 1\n", r"policy.toml:4: \[\[rule\]\] key high: Field required"),
        (LOSS + RULE, r"policy.toml:4: \[\[rule\]\] key low: Field required"),
        (LOSS + RULE + "low = 2\nhigh = 1\n", r"policy.toml:4: .* low 2.0 is above high 1.0$"),
        (
            LOSS + RULE.replace('metric = "b"', "always = true") + "low = 0\nhigh = 1\n",
            "always needs the metrics that a record must hold$",
        ),
        (LOSS + COMPLETE, r"policy.toml:4: \[\[complete\]\] key number: Field required"),
        (LOSS + COMPLETE + "number = []\n", r"policy.toml:4: \[\[complete\]\] key number"),
        (
            LOSS + COMPLETE + 'number = [{ metric = "a" }]\n',
            r"policy.toml:4: \[\[complete\]\] key number.0.where: Field required",
        ),
        (
            LOSS + COMPLETE + 'number = [{ metric = "a", where = "b*" }]\n',
            r"key number.0.where: Value error, 'b\*' is a pattern",
        ),
        (LOSS + BAND, r"policy.toml:4: \[\[band\]\] key band: Field required"),
        (LOSS + BAND + 'band = 1\nby = "cpu"\n', r"policy.toml:4: \[\[band\]\] key by"),
        (LOSS + BAND + "band = 0\n", r"policy.toml:4: \[\[band\]\] key band"),
    ],
)
def test_malformed_policies(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize("key", ["recipe", "model", "corpus"])
@pytest.mark.parametrize("names", ['"ao-*"', '["te-current", "ao-*"]'])
def test_patterns_are_refused_in_selectors(tmp_path, key, names):
    text = f"{LOSS}{LOSS}{key} = {names}\n"
    with pytest.raises(
        ValueError,
        match=re.escape(f"policy.toml:4: [[loss]] key {key}: Value error, 'ao-*' is a pattern; list the names"),
    ):
        load(tmp_path, text)


@pytest.mark.parametrize("pattern", ["*sqnr", "fprop ?", "[fd]prop"])
@pytest.mark.parametrize("key", ["metric", "where"])
def test_patterns_are_refused_in_rules(tmp_path, key, pattern):
    text = f'{LOSS}[[rule]]\ncheck = "a"\n{key} = "{pattern}"\nlow = 0\nhigh = 1\nwhy = "long enough"\n'
    with pytest.raises(ValueError, match=re.escape(f"{pattern!r} is a pattern; list the names")):
        load(tmp_path, text)


def test_a_name_may_hold_any_letter(tmp_path):
    names = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '*?[]<>/\\"')
    assert load(tmp_path, f'{LOSS}recipe = "{names}"\n').loss[0].recipe == (names,)


def test_an_execution_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"policy.toml:1: \[\[loss\]\] key execution.0: Input should be 'native'"):
        load(tmp_path, LOSS + 'execution = "nat*"\n')


def test_a_missing_policy_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"policy.toml: cannot be read: No such file"):
        policy.load(tmp_path, DAY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('band = 0.7\nmemory_band = 0.05\nwhy = "long enough"', "policy.toml:3: [[speed]] key band"),
        ('band = 0.05\nwhy = "long enough"', "policy.toml:3: [[speed]] key memory_band"),
        ('band = 0.05\nmemory_band = 0.05\nbusy = 101\nwhy = "long enough"', "policy.toml:3: [[speed]] key busy"),
        (
            'band = 0.05\nmemory_band = 0.05\nleast_pairs = 5\nwhy = "long enough"',
            "policy.toml:3: [[speed]] key least_pairs",
        ),
        ('band = 0.05\nmemory_band = 0.05\nbnad = 1\nwhy = "long enough"', "policy.toml:3: [[speed]] key bnad"),
        ("band = 0.05\nmemory_band = 0.05", "policy.toml:3: [[speed]] key why"),
    ],
)
def test_a_bad_row_names_file_line_and_key(tmp_path, text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        load(tmp_path, f"# one\n# two\n[[speed]]\n{text}\n")


def test_rows_of_the_project(trajectory):
    rows = stored()[1]
    cell, large = trajectory("te-nvfp4").cell, {"model": "1b", "corpus": "topics"}
    assert rows.loss_row(cell).margin == 0.005
    assert rows.loss_row(trajectory("ao-rowwise").cell).margin == 0.005
    assert rows.loss_row(trajectory("ao-rowwise").cell.model_copy(update=large | {"model": "mini"})).margin == 0.001
    assert rows.loss_row(trajectory("ao-rowwise").cell.model_copy(update=large)).margin == 0.0025
    assert rows.golden_row(cell.model_copy(update={"model": "1b"})).least_seeds == 3
    assert rows.golden_row(cell).least_seeds == 8
    assert all(row.why for row in [*rows.loss, *rows.rule, *rows.band, *rows.golden, *rows.speed])


def test_escalation_ends_where_the_golden_does():
    row = LossRow(margin=0.005, seeds=(3, 5, 8), why="long enough")
    assert [row.within(n).seeds for n in (2, 3, 4, 5, 8, 9)] == [(2,), (3,), (3, 4), (3, 5), (3, 5, 8), (3, 5, 8)]


def test_seeds_that_a_user_names_are_one_look(tmp_path, trajectory):
    found = load(tmp_path, LOSS).with_seeds(4)
    assert found.loss_row(trajectory().cell).seeds == (4,)


@pytest.mark.parametrize("table", ["loss", "golden", "speed", "gemm"])
def test_no_row_is_an_error(tmp_path, trajectory, table):
    found = load(tmp_path, LOSS.replace("margin", 'recipe = "x"\nmargin'))
    with pytest.raises(ValueError, match=rf"no \[\[{table}\]\] row selects bf16-nano-native"):
        getattr(found, f"{table}_row")(trajectory().cell)
