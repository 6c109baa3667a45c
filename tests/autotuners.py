"""Stand-ins for tests: Inductor's own autotuner, with launchers that need no GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import SimpleNamespace

from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.runtime.triton_heuristics import CachingAutotuner


class Launcher:
    """A compiled configuration: says which one it is."""

    store_cubin, cache_hash = False, ""

    def __init__(self, name: str, spills: int | None = 0) -> None:
        self.config, self.n_spills = Named(name), spills

    def __call__(self, *args, stream=None, **kwargs) -> str:
        return str(self.config)


class Named:
    found_by_coordesc = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Kernel(CachingAutotuner):
    """Inductor's autotuner, with what ``run`` asks of it, and launchers that exist from ``precompile`` on."""

    def __init__(self, name: str, *configs: str, made: bool = False, custom: bool = False, **spills: int) -> None:
        self.fn, self.lock, self.custom_kernel = SimpleNamespace(__name__=name), threading.Lock(), custom
        self.all = [Launcher(c, spills.get(c)) for c in configs]
        self.launchers = list(self.all) if made else []
        self.triton_meta, self.inductor_meta, self.device_props = {}, {}, DeviceProperties("cuda", 0, 1, 90)
        self.triton_interpret = self.dump_launch_params = self.dump_launch_tensors = self.deterministic_mode = (
            self.is_backward
        ) = False
        self.heuristic_type = self.compile_id = self._profiler_ctx = self._debug_call = None
        self._plugins, self._cache_eligible = [], True
        self._cached_launcher = Launcher("the fastest") if made else None

    def precompile(self, *args: object, **kwargs: object) -> None:
        assert not self.launchers
        self.launchers = list(self.all)

    def autotune_to_one_config(self, *args, **kwargs) -> None:
        raise AssertionError("timed, which needs a GPU")

    def coordinate_descent_tuning(self, launcher, *args, **kwargs) -> Launcher:
        tuned = Launcher("tuned further")
        tuned.config.found_by_coordesc = True
        return tuned


def three() -> list[Kernel]:
    """One that was used before, one of a single configuration, one of two."""
    return [Kernel("quantize", "X2", "X1", "X4", made=True), Kernel("add", "X1"), Kernel("norm", "X1", "X2")]


def run(kernels: Iterable[Kernel]) -> list[str]:
    """The configuration that each ran in."""
    return [k.run(stream=0) for k in kernels]
