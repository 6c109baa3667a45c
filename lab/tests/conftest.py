"""The fixtures of the suite's own tests."""

from conftest import (  # noqa: F401
    eager,
    frozen_heap,
    golden,
    nano,
    once,
    one_rank,
    one_thread,
    run,
    runs,
    session,
    trajectory,
)
