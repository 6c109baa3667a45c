"""The recorded seconds of tests: their file, and what is assumed of a test that nobody has recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.planning import seconds
from fp8parity.planning.seconds import Key, Seconds

HEAD = "test,model,recipe,execution,ranks,per,alone,device\n"
ROWS = {
    Key("test_modes", "tiny", "te-block", "native"): 10.0,
    Key("test_modes", "tiny", "te-current", "native"): 30.0,
    Key("test_modes", "small", "te-block", "native"): 90.0,
    Key("test_codes", "tiny", "te-block", "native"): 2.0,
}

MADE = Seconds(ROWS, frozenset({"test_modes"}), 12.5, {Key("test_modes", "small", "te-block", "native"): 70.0})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (Key("test_modes", "small", "te-block", "native"), 90.0),
        (Key("test_modes", "tiny", "new", "native"), 20.0),  # the median of that test and model
        (Key("test_modes", "huge", "new", "native"), 30.0),  # of that test
        (Key("test_new", "tiny", "new", "native"), 20.0),  # of all
    ],
)
def test_an_unknown_test_takes_as_long_as_those_most_like_it(key, expected):
    assert Seconds(ROWS).of(key) == expected


def test_where_nothing_is_known_all_tests_are_alike():
    assert Seconds().of(Key("test_modes", "tiny", "te-block", "native")) == 1.0


def test_what_is_written_is_read_and_other_rows_stay(tmp_path: Path):
    path = seconds.write(tmp_path, "h100", "nvidia-h200", MADE)
    assert path == tmp_path / "seconds" / "h100" / "nvidia-h200.csv"
    assert seconds.load(tmp_path, "h100") == MADE
    changed = Key("test_codes", "tiny", "te-block", "native")
    seconds.write(tmp_path, "h100", "nvidia-h200", Seconds({changed: 3.14159}))
    assert seconds.load(tmp_path, "h100") == Seconds(ROWS | {changed: 3.14}, MADE.seeds, MADE.session, MADE.device)
    lines = path.read_text().splitlines()
    assert lines[:3] == [HEAD.strip(), "-,-,-,-,-,session,12.5,0", "test_codes,tiny,te-block,native,1,test,3.14,0"]
    assert "test_modes,small,te-block,native,1,seed,90,70" in lines


@pytest.mark.parametrize(("later", "kept"), [(90.0, 70.0), (50.0, 50.0)])
def test_the_least_seconds_that_a_run_needed_the_gpu_stay(tmp_path: Path, later, kept):
    """In a later session other runs shared the GPU, and the steps were longer."""
    key = Key("test_modes", "small", "te-block", "native")
    for device in (70.0, later):
        seconds.write(tmp_path, "h100", "nvidia-h200", Seconds({key: 100.0 + device}, device={key: device}))
    found = seconds.load(tmp_path, "h100")
    assert (found.rows[key], found.device[key]) == (100.0 + later, kept)


def test_the_platform_and_not_the_machine_decides(tmp_path: Path):
    """Two devices of one platform measured a test: each machine that reads them takes the same one."""
    key = Key("test_codes", "tiny", "te-block", "native")
    for device, value in (("nvidia-h200", 5.0), ("nvidia-h100", 4.0)):
        seconds.write(tmp_path, "h100", device, Seconds({key: value}))
    seconds.write(tmp_path, "cpu", "xeon", Seconds({key: 50.0}))
    assert seconds.load(tmp_path, "h100").of(key) == 4.0
    assert seconds.load(tmp_path, "cpu").of(key) == 50.0
    assert seconds.load(tmp_path, None).rows == {key: 50.0}
    assert seconds.load(tmp_path / "nowhere", "h100").rows == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("test_a,tiny,x,native,1,test,soon,0", ":3: 'soon' is not a number of seconds"),
        ("test_a,tiny,x,native,1,test,nan,0", ":3: 'nan' is not a number of seconds"),
        ("test_a,tiny,x,native,1,test,-1,0", ":3: '-1' is not a number of seconds"),
        ("test_a,tiny,x,native,1,run,1,0", ":3: unknown per 'run': known: test, seed, session"),
        ("test_b,tiny,x,native,1,test,1,0", ":3: test_b tiny x native 1 appears twice"),
        ("test_a,tiny", ":3: expected 8 fields; remove the file and write it anew: fp8parity plan SET --write"),
    ],
)
def test_a_wrong_row_is_named_with_file_and_line(tmp_path: Path, line, words):
    path = tmp_path / "seconds" / "cpu" / "xeon.csv"
    path.parent.mkdir(parents=True)
    path.write_text(f"{HEAD}test_b,tiny,x,native,1,test,1,0\n{line}\n")
    with pytest.raises(ValueError, match=f"^{path}{words}$"):
        seconds.load(tmp_path, "cpu")
