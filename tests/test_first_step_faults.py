"""What a run records of its first step. tests/faults/first_steps.py has the faults that it must show."""

import pytest
from faults.runs import first_gradients, one_step
from narrowed import some


@pytest.mark.slow
def test_the_first_gradients_are_recorded_by_parameter(eager):
    made = one_step("te-current", steps=2)
    assert made.grad_norm[0] != pytest.approx(made.grad_norm[1], rel=1e-3)
    total = sum(v**2 for v in made.first_gradients.values()) ** 0.5
    assert total == pytest.approx(made.grad_norm[0], rel=1e-6)
    assert set(made.first_gradients) == set(one_step("bf16").first_gradients)
    assert not some(first_gradients(made)).red
