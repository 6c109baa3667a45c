"""Records of timed GEMMs: what they may hold, their files, and their place in a set."""

from __future__ import annotations

import re
from pathlib import Path

import gemm_records
import pytest
from fp8parity.records.gemms import GemmTimes
from fp8parity.records.sets import merge
from fp8parity.records.storage import load_record, name_of, write_json


def test_a_record_comes_back_from_its_file(tmp_path):
    record = gemm_records.made()
    assert name_of(record) == "te-current-codonfm-5b-native-topics-gemms-31x512.json"
    assert load_record(write_json(tmp_path / name_of(record), record)) == record


def test_lists_of_other_shapes_are_other_records():
    """A list has no batch. Its name holds a hash of its shapes, in any order, so that two lists do not contradict each other."""
    one = gemm_records.made(micro_batch=0, sequence=0, layers=0)
    turned = one.model_copy(update={"gemms": one.gemms[::-1]})
    fewer = one.model_copy(update={"gemms": one.gemms[:6]})
    assert one.content == turned.content != fewer.content
    assert re.fullmatch("gemms-[0-9a-f]{6}", one.content)
    assert len(merge([(Path("a"), one), (Path("b"), fewer)])) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe_seconds": [1.0]}, "up wgrad kernel: bf16_seconds holds 9 values, and recipe_seconds 1"),
        ({"bf16_seconds": [], "recipe_seconds": []}, "bf16_seconds holds 0 values"),
        ({"failed": "CUBLAS_STATUS_NOT_SUPPORTED"}, "up wgrad kernel failed, and holds times"),
        ({"recipe_seconds": [0.0] * 9}, "greater than 0"),
        ({"gemm": "fprop"}, "gemms holds up fprop kernel more than once"),
        ({"error": -1.0}, "greater than or equal to 0"),
    ],
)
def test_a_record_refuses_what_is_no_measurement(changes, words):
    record = gemm_records.changed(gemm_records.made(), "up wgrad kernel", **changes)
    with pytest.raises(ValueError, match=words):
        GemmTimes.model_validate_json(record.model_dump_json())
