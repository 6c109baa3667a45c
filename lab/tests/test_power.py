"""``fp8parity power``: seeds that a margin needs."""

import pytest
from fp8parity.cli import main
from fp8parity.cli.common import Exit
from fp8parity.records.storage import name_of, write_json
from fp8parity_lab.cli.power import seeds_needed
from processes import ROOT

GOLDEN = ROOT / "golden"
POWER = [
    (("--sd", "0.1%", "--margin", "0.25%"), f"true gap 0.000%: {seeds_needed(0.001, 0.0025, 0.0, 0.05 / 4)} seeds"),
    (("--model", "mini"), "the golden holds 8 seeds; a gate decides at 2, 3, 5, 8"),
    (("--model", "mini", "--margin", "0.002%"), "15 seeds, and the golden holds 8: record it with more"),
]


@pytest.mark.parametrize(("arguments", "words"), POWER)
def test_power_computes_seeds(arguments, words, capsys):
    assert main(["power", "--golden-dir", str(GOLDEN), *arguments]) == Exit.OK
    assert words in capsys.readouterr().out


LENGTHS = f"{GOLDEN}/records/h200-lengths.zip"
REFUSED = [
    (("--model", "minii"), "unknown model 'minii': did you mean mini"),
    (("--recipe", "te-curren"), "unknown recipe 'te-curren': did you mean te-current"),
    (("--margin", "0"), "--margin 0.00%: must be above 0 and below 100%"),
    (("--model", "1b", "--records", LENGTHS), "no training run of 1b is on record"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_power_refuses_unknown_names_and_shares(arguments, words, capsys):
    assert main(["power", "--golden-dir", str(GOLDEN), *arguments]) == Exit.UNDECIDED
    printed = capsys.readouterr()
    assert printed.out == "" and words in printed.err and printed.err.count("\n") == 1


def test_power_reads_the_noise_of_records(trajectory, tmp_path, capsys):
    for seed, gap in enumerate((0.001, 0.002, 0.003)):
        for run in (trajectory(seed=seed), trajectory("te-current", seed, gap)):
            write_json(tmp_path / name_of(run), run)
    command = ["power", "--golden-dir", str(GOLDEN), "--model", "nano", "--records", str(tmp_path)]
    assert main(command) == Exit.OK and "0.1000%" in capsys.readouterr().out
    assert main([*command, "--recipe", "te-curren"]) == Exit.UNDECIDED
    assert "did you mean te-current" in capsys.readouterr().err


def test_power_refuses_a_damaged_policy(tmp_path, capsys):
    (tmp_path / "policy.toml").write_text(f"a = {'[' * 100_000}")
    assert main(["power", "--golden-dir", str(tmp_path), "--model", "mini"]) == Exit.UNDECIDED
    assert "policy.toml: its values are nested too deeply" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sd", "margin", "gap", "published"),
    [
        (0.04, 0.1, 0.0, 5), (0.04, 0.1, 0.5, 12), (0.06, 0.1, 0.0, 9), (0.06, 0.1, 0.5, 26), (0.06, 0.25, 0.0, 3),
        (0.06, 0.25, 0.5, 5), (0.1, 0.1, 0.0, 23), (0.1, 0.25, 0.5, 12), (0.1, 0.5, 0.5, 4), (0.3, 0.5, 0.0, 9), (0.3, 1.0, 0.5, 8),
    ],
)  # fmt: skip
def test_power_is_near_the_two_sample_table(sd, margin, gap, published):
    """The literature's table is for unpaired arms of sd each: a difference of sd * sqrt(2), with twice our degrees of freedom.

    The paired design has fewer degrees of freedom, so it may need up to two seeds more, never fewer.
    """
    n = seeds_needed(sd * 2**0.5, margin, gap * margin, alpha=0.05)
    assert n is not None
    assert published <= n <= published + 2
