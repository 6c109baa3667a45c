"""What a forked process does to be the program that would have been started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn


def take(environment: Mapping[str, str]) -> None:
    """Have this environment, and nothing of the parent's."""
    os.environ.clear()
    os.environ.update(environment)


def end_with(program: Callable[[], object]) -> NoReturn:
    """Run the program, and end with the exit status that Python would give it."""
    code = 0
    try:
        program()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # as Python does with what nobody caught: it is printed, and the status is 1
        code = 1
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is an exception
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also if nobody reads them any more: this process must never go on as its parent
        os._exit(code)
