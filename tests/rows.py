"""Made-up rows of the policy that hold the least that each must hold."""

from __future__ import annotations

from typing import Any

from fp8parity.judging.policy import GemmRow, GoldenRow, LossRow, SpeedRow
from fp8parity.judging.policy.rows import Band, Rule, Trend
from fp8parity.judging.policy.selectors import Row

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
