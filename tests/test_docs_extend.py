"""The examples of docs/extend.md work, in this project and in one of a user's own."""

from __future__ import annotations

from dataclasses import replace

import processes
from documents import EXTEND, example
from fp8parity import checks
from sessions import cell, verdict


def test_the_check_that_extend_shows(monkeypatch, tmp_path, session, eager):
    """It measures, its rule bounds it on both sides, and its test is Python."""
    rows = next(b for b in EXTEND if b.language == "toml")
    (tmp_path / "policy.toml").write_text(rows.text)
    [check] = example(1).pytest_fp8parity_checks()
    monkeypatch.setitem(checks.CHECKS, check.name, check)
    record = session.measure("gain", cell("te-current", "emulated"))
    assert [m.metric for m in record.values] == ["fprop gain", "dgrad gain", "wgrad gain"]
    assert verdict(record, tmp_path).status == "pass"
    for factor in (0.97, 1.03):
        wrong = [replace(m, value=m.value * factor) for m in record.values]
        assert verdict(record.model_copy(update={"values": wrong}), tmp_path).status == "fail"
    assert example(2).test_gain


def test_a_check_is_added_without_editing_the_library(tmp_path):
    """The three blocks of docs/extend.md in a user's own project, and nothing else."""
    check, test, rule = (b.text for b in EXTEND[1:])
    (tmp_path / "pytest.ini").write_text("[pytest]\nfp8parity_golden_dir = mine\n")
    (tmp_path / "conftest.py").write_text(f'{check}\npytest_plugins = ("fp8parity.gate.plugin",)\n')
    (tmp_path / "test_gain.py").write_text(test)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "policy.toml").write_text(rule)
    done = processes.run("pytest", "-q", "--recipe", "te-current", "--execution", "emulated", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "Accept: the only check is green." in done.stdout
