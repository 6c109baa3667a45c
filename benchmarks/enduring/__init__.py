"""The trials of ``benchmarks/endurance.py``: one module a family."""
