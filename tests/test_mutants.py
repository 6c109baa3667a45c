"""The driver of mutation testing: what it changes, what it calls killed, and that its table names what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mutants
import pytest
from mutants import TESTS, Mutant, Result

ROOT = Path(__file__).parents[1]
DECIDING = ("judging", "records")


def changes(source: str) -> list[str]:
    return [m.change for m in mutants.mutants("m", source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a < b -> a <= b"]),
        ("a and b", ["a and b -> a or b"]),
        ("not a", ["not a -> a"]),
        ("a * b", ["a * b -> a / b"]),
        ("a if b else c", ["a if b else c -> c if b else a"]),
        ("x = True", ["True -> False"]),
        ("x = 2.5", ["2.5 -> 3.5"]),
        ("x = 'red'", ["'red' -> 'redX'"]),
        ("def f():\n    return x", ["return x -> return None"]),
        ("if x:\n    y()", ["if x: -> if False:"]),
        ('"""A docstring."""\ndef f(a: "int") -> "str":\n    """Another."""', []),
    ],
)
def test_one_thing_changes(source, expected):
    assert changes(source) == expected


def test_each_mutant_differs_in_one_place():
    source = "def f(a, b):\n    return a < b and a + 1 > b\n"
    found = mutants.mutants("m", source)
    assert [m.line for m in found] == [2] * 5 + [2] * (len(found) - 5)
    assert len({m.text for m in found}) == len(found) == 6
    assert source.strip() not in {m.text for m in found}


def test_equal_changes_have_keys_of_their_own():
    """The reason for one of them once held for the others, too."""
    source = "x = 1 + f(1)\nif x:\n    x = 1 + f(1)\n"
    found = [m for m in mutants.mutants("m", source) if m.change == "1 -> 2"]
    assert len({m.key for m in found}) == len(found) == 4
    assert {m.nth: m.text.replace("\n", ";") for m in found} == {
        1: "x = 2 + f(1);if x:;    x = 1 + f(1)",
        2: "x = 1 + f(2);if x:;    x = 1 + f(1)",
        3: "x = 1 + f(1);if x:;    x = 2 + f(1)",
        4: "x = 1 + f(1);if x:;    x = 1 + f(2)",
    }


def test_a_key_stays_although_lines_move():
    before, after = (mutants.mutants("m", text) for text in ("x = 1 + 1\n", "import a\n\nif a:\n    x = 1 + 1\n"))
    assert {m.key for m in before} <= {m.key for m in after}


def test_every_reason_is_about_a_mutant():
    why = mutants.reasons()
    sources = {module: (ROOT / mutants.PACKAGE / f"{module}.py").read_text() for module, *_ in why}
    made = {m.key for module, source in sources.items() for m in mutants.mutants(module, source, written=False)}
    assert set(why) - made == set()


def test_every_deciding_module_has_tests():
    library = ROOT / mutants.PACKAGE
    modules = {str(p.relative_to(library).with_suffix("")) for room in DECIDING for p in (library / room).rglob("*.py")}
    without = {"judging/__init__", "records/__init__"}
    assert modules - set(TESTS) == without  # they hold a docstring alone
    for names in TESTS.values():
        assert all((ROOT / "tests" / f"test_{name}.py").exists() for name in names.split()), names


def test_a_sample_is_the_same_for_the_same_seed():
    every = [Mutant("m", i, "a", "a", "b", "") for i in range(100)]
    assert mutants.sample(every, 10, 3) == mutants.sample(every, 10, 3) != mutants.sample(every, 10, 4)
    assert len(mutants.sample(every, 500, 3)) == 100


def test_survivors_need_a_reason():
    a, b = Mutant("judging/stats", 4, "x()", "x", "y", ""), Mutant("judging/stats", 9, "x", "x", "y", "")
    results = [Result(a, "survived", 1), Result(b, "survived", 1), Result(a, "killed", 1), Result(a, "timeout", 1)]
    text = mutants.report(results, 50, "command", {("judging/stats", "x()", "x -> y", 1): "the two are equal"})
    assert "| judging/stats | statistics loss_windows | 4 | 2 | 1 | 1 | 1 |" in text
    assert "| judging/stats:4 | `x -> y` | the two are equal |" in text
    assert "| judging/stats:9 | `x -> y` | open |" in text


TRIAL = """
import mutants
from pathlib import Path
mutants.TESTS = {"m": "m"}
shop = mutants.Workshop(Path.cwd(), 20)
print(shop.run(["m"], 20))
for change in mutants.mutants("m", (Path.cwd() / mutants.PACKAGE / "m.py").read_text()):
    print(change.change, shop.judge(change).outcome)
"""


@pytest.mark.slow
def test_mutants_are_killed_or_survive(tmp_path):
    """A test that looks at one of two decisions kills one mutant. The module stands as before at the end."""
    module, test = tmp_path / mutants.PACKAGE / "m.py", tmp_path / "tests" / "test_m.py"
    for path, text in (
        (module, "A = 1 < 1\nB = 2 == 2\n"),
        (test, "import m\n\ndef test_a():\n    assert m.A is False\n"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {mutants.PACKAGE}\n")
    command = [sys.executable, "-c", TRIAL]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "benchmarks")}, capture_output=True, text=True, check=True
    )
    first, *rest = done.stdout.splitlines()
    assert first == "0"  # without a mutant
    assert rest[:2] == ["1 < 1 -> 1 <= 1 killed", "2 == 2 -> 2 != 2 survived"]
    assert rest[2:] == ["1 -> 2 survived", "1 -> 2 killed", "2 -> 3 survived", "2 -> 3 survived"]
    assert module.read_text() == "A = 1 < 1\nB = 2 == 2\n"
