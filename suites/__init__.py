"""The suites of fp8-parity: convergence, numerics and throughput. A wheel carries them as ``fp8parity.suites``."""
