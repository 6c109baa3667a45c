"""Instruments next to fp8-parity, which explain or explore."""
