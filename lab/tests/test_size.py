"""``python -m fp8parity_lab.size``: statements of the core by room, and the number that the tests state."""

from pathlib import Path

import pytest
from fp8parity_lab import size


@pytest.mark.parametrize(("stated", "code"), [("4", 0), ("3", 1), ("5", 1)])
def test_size_differs_from_stated_number_fails(tmp_path: Path, capsys, stated, code):
    package, tests = tmp_path / "fixtures" / "fp8parity", tmp_path / "tests"
    (package / "cli").mkdir(parents=True)
    tests.mkdir()
    (package / "runner.py").write_text("a = 1; b = 2\n")
    (package / "cli" / "__init__.py").write_text("if True:\n    pass\n")
    (tests / "test_layering.py").write_text(f"MAX_STATEMENTS = {stated}\n")
    assert size.main(tmp_path) == code
    said = capsys.readouterr()
    assert {tuple(line.split(maxsplit=1)) for line in said.out.splitlines()} == {
        ("2", "runner"),
        ("2", "cli"),
        ("4", "in total"),
    }
    assert ("MAX_STATEMENTS = 4" in said.err) == bool(code)


@pytest.mark.parametrize("glob", [glob for globs in size.ABILITIES.values() for glob in globs])
def test_a_file_of_an_ability_exists(glob):
    assert list((size.ROOT / "fixtures" / "fp8parity").glob(glob))
