"""The suites of fp8-parity. A wheel carries them as ``fp8parity.suites``."""
