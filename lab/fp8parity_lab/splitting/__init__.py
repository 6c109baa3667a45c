"""Divide the time of a step or block by its kernels, and time each linear alone."""

from fp8parity.records.cell import Name


class Category(Name):
    """What a kernel does."""

    GEMM = "gemm"
    QUANTIZE = "quantize"
    """Quantization, casts, amaxes and scales, and transposes of quantized tensors."""
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    """Activations, residual sums, rotary embeddings, and copies."""
    OPTIMIZER = "optimizer"
    LOSS = "loss"
    OTHER = "other"
    IDLE = "idle"
    """Time of a step in which no kernel runs."""
