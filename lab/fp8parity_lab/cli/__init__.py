"""Commands that the lab adds to ``fp8parity``."""
