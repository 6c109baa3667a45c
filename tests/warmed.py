"""What many tests and most sessions inside tests make first, made by the processes from which they are forked.

To import this module is enough. The corpus takes 0.3 s, the templates of all reports 0.2 s, the speed of the processor 0.03 s, the cells
0.01 s and the versions of packages 0.01 s, in each session.
"""

from __future__ import annotations

from fp8parity.gate import selection
from fp8parity.report import render_html
from fp8parity.training import hardware, provenance
from fp8parity.training.isolation import pinned_threads
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets

with pinned_threads(1):  # a process with a pool of threads must not be forked
    stream = corpus.load("topics")
    _ = stream.unigram, stream.bigram
hardware.operations_per_second()
provenance.versions()
selection.suite_cells(presets())
render_html._environment().get_template("page.html.j2")
