"""Kept runs: names and numbers, the verdicts on them, the last green one, and the trend page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import reports
import two_sides
from fp8parity.cli import main
from fp8parity.records import manifest, sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Selected
from fp8parity.records.schema import Measurement, Measurements
from fp8parity_lab.history import judged as judging
from fp8parity_lab.history import kept as history
from fp8parity_lab.history import page as trend
from fp8parity_lab.history.judged import Judged, updates
from sessions import stored
from two_sides import TOML, save


def records(device: str = "NVIDIA H200", torch: str = "2.11.0", at: str = ""):
    """A record of one check, with a version and a time."""
    made = reports.provenance(device=device, packages={"torch": torch, "torchao": "0.18.0"})
    return [reports.layers("tiny", "te-current").model_copy(update={"provenance": made, "recorded": at})]


def test_runs_are_numbered_and_named_in_order(tmp_path):
    made = [history.keep(tmp_path, name, records(torch=name)) for name in ("2.12", "2.13", "2.12")]
    assert [k.title for k in made] == ["0001_2.12", "0002_2.13", "0003_2.12"]
    assert history.runs(tmp_path) == made
    assert sets.load([made[1].path])[0].provenance.packages["torch"] == "2.13"
    made[0].path.unlink()
    assert history.keep(tmp_path, "c", records()).number == 4, "a number is not given to another run"


@pytest.mark.parametrize("name", ["", "../up", "a b", "-x", "x" * 81])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is no name of a run: use up to 80 letters"):
        history.keep(tmp_path, name, records())
    assert not (tmp_path / history.FOLDER).exists()


def test_a_run_is_found_by_number_or_by_its_newest_name(tmp_path):
    for name in ("a", "b", "a"):
        history.keep(tmp_path, name, records())
    kept = history.runs(tmp_path)
    assert [history.named(kept, w).number for w in ("a", "b", "2", "0003")] == [3, 2, 2, 3]
    with pytest.raises(ValueError, match="no kept run 'c'; fp8parity history list names them"):
        history.named(kept, "c")


class TestJudged:
    @pytest.mark.parametrize(
        ("times", "date"),
        [(("2026-11-22T10:30:59+00:00", "2026-11-21T09:15:00+00:00", ""), "2026-11-21 09:15"), (("",), "")],
    )
    def test_a_run_is_judged_with_its_first_time_and_its_facts(self, times, date, tmp_path):
        cells = [reports.layers("tiny", recipe).cell for recipe in ("te-current", "te-block", "te-delayed")]
        made = [r.model_copy(update={"cell": c}) for at, c in zip(times, cells, strict=False) for r in records(at=at)]
        [found] = judging.judged(history.keep(tmp_path, "n", made), *stored())
        assert (found.number, found.name, found.date, found.device) == (1, "n", date, "NVIDIA H200")
        assert found.facts["device"] == "NVIDIA H200" and found.facts["torch"] == "2.11.0"
        assert len(found.verdicts) >= 1

    def test_lines_have_gap_and_speed_over_runs(self):
        verdicts, _ = reports.session(recipes=("te-current",), speeds=True)
        runs = [Judged(number=n, name="n", date="", device="H200", facts={}, verdicts=verdicts) for n in (1, 4)]
        found = {(line.quantity, line.label): line for line in judging.lines(runs)}
        assert set(found) == {("gap", "bf16"), ("gap", "te-current native"), ("speed-up", "te-current native")}
        gap = next(v.loss.gap for v in verdicts if v.loss and v.loss.gap and v.cell.recipe == "te-current")
        assert [(p.number, p.value, p.status) for p in found["gap", "te-current native"].points] == [
            (n, gap.mean, "pass") for n in (1, 4)
        ]
        assert [p.value for p in found["speed-up", "te-current native"].points] == [1.31, 1.31]


def test_page_of_trends_is_whole_and_escaped(tmp_path):
    verdicts, _ = reports.session(recipes=("te-current",))
    bad = "<img src=x onerror=alert(1)>"
    facts = {"device": bad, "torch": "2.13.0"}
    made = Judged(number=1, name="v1", date="2026-11-22 10:00", device=bad, facts=facts, verdicts=verdicts)
    index, numbers = trend.write([made], tmp_path / "public")
    text = index.read_text()
    assert [p.name for p in sorted(index.parent.iterdir())] == ["index.html", "trend.json"]
    assert bad not in text and "0001_v1" in text and "2026-11-22 10:00" in text
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', re.sub(r"(?s)<script.*?</script>", "", text)) == []
    assert json.loads(numbers.read_text())["rows"][0]["versions"] == "torch 2.13.0"


class TestCommand:
    @pytest.fixture
    def three(self, tmp_path) -> Path:
        """Runs 1 and 3 are equal but for their version; run 2 has another version, too."""
        for i, version in enumerate(("2.11.0", "2.12.0", "2.13.0")):
            history.keep(tmp_path, f"torch-{version}", records(torch=version, at=f"2026-11-2{i}T08:00:00+00:00"))
        return tmp_path

    def command(self, folder: Path, *arguments: str) -> int:
        (folder / "policy.toml").write_text(TOML)
        return main(["history", *arguments, "--parity-records", str(folder), "--golden-dir", str(folder)])

    @pytest.mark.parametrize(("green", "code", "word"), [(True, 0, "green"), (False, 1, "red")])
    def test_last_is_red_if_the_newest_run_is(self, three, capsys, monkeypatch, green, code, word):
        monkeypatch.setattr(Judged, "green", property(lambda self: green))
        assert self.command(three, "last") == code
        [line] = capsys.readouterr().out.splitlines()[1:]
        assert line.split()[:2] == [word, "0003_torch-2.13.0"]

    def test_compare_needs_a_green_run_or_a_name(self, three, capsys, monkeypatch):
        monkeypatch.setattr(Judged, "green", property(lambda self: self.number == 1))
        assert self.command(three, "compare") == 0
        assert capsys.readouterr().out.startswith("OLD 0001_torch-2.11.0, NEW 0003_torch-2.13.0\n")
        assert self.command(three, "compare", "--old", "2", "--new", "torch-2.11.0") == 0
        assert capsys.readouterr().out.startswith("OLD 0002_torch-2.12.0, NEW 0001_torch-2.11.0\n")
        monkeypatch.setattr(Judged, "green", property(lambda self: False))
        assert self.command(three, "compare") == 2
        assert "no run before 0003_torch-2.13.0 is green; name one with --old" in capsys.readouterr().err

    def test_add_and_page(self, three, tmp_path, capsys):
        source = three / history.FOLDER / "0001_torch-2.11.0.zip"
        assert self.command(three, "add", "again", str(source)) == 0
        assert "0004_again.zip: " in capsys.readouterr().out
        assert self.command(three, "page", str(tmp_path / "public")) == 0
        assert (tmp_path / "public" / "index.html").read_text().count("</tr>") == 5


def test_kept_runs_do_not_blame_an_unknown_library():
    first, second, third = (
        Judged(number=i, name="", date="", device="d", facts=facts, verdicts=[])
        for i, facts in enumerate(
            ({"torch": "1"}, {"torch": "1", "cuDNN": "9.10.2"}, {"torch": "1", "cuDNN": "9.13.0"})
        )
    )
    assert updates(first, second) == []
    assert updates(second, third) == ["cuDNN 9.10.2 -> 9.13.0"]


CELL = "ao-mxfp8-nano-emulated"


def test_a_kept_run_that_lost_a_part_is_red(trajectory, tmp_path, capsys):
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED)
    row = Measurement(metric="fprop sqnr", where="gaussian", value=28.5)
    where = {"provenance": trajectory().provenance, "session": "s", "partial": True}
    green = Measurements.model_validate({"cell": cell, "check": "gemm", "values": [row], **where})
    whole, part = (save(tmp_path / name, [green]) for name in ("whole", "part"))
    crashed = Selected(cell=CELL, test="test_gemm", outcome="failed")
    manifest.write(part, two_sides.session(trajectory, crashed))
    (tmp_path / "policy.toml").write_text(
        f'{TOML}[[rule]]\ncheck = "gemm"\nlow = 28\nhigh = 29\nwhy = "a made-up row"\n'
    )
    kept = ["--parity-records", str(tmp_path / ".parity"), "--golden-dir", str(tmp_path)]
    for folder, code in ((whole, 0), (part, 1)):
        assert main(["history", "add", folder.name, str(folder), *kept]) == 0
        assert main(["history", "last", *kept]) == code
    lines = capsys.readouterr().out
    assert f"1 green, but the manifest of session s selected {CELL}" in " ".join(lines.split())
