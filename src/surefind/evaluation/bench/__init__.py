"""The benchmark: cells of data set × row × seed, each a JSON file that is written once.

A cell holds every metric, interval and curve, the settings, versions and times. A benchmark that was
killed goes on with the cells that are missing, and within a cell with the training that was kept. Methods
that start from the same point estimate (post-hoc LAM, PFE, the ensemble's first member, the free
baselines) share its training.

Test and out-of-distribution data are only looked at to be reported. The rule for the posterior's width,
the same for all sets, is the default of `surefind.learning.methods`.
"""

from surefind.evaluation.bench.cells import write_cell
from surefind.evaluation.bench.custom import own_problem
from surefind.evaluation.bench.lineup import FREE, SHARED, ablation, rows_of
from surefind.evaluation.bench.protocols import PROTOCOLS, Problem, Protocol, load_problem
from surefind.evaluation.bench.running import run_bench, run_problem
from surefind.evaluation.results import read_cell

__all__ = [
    "FREE",
    "PROTOCOLS",
    "SHARED",
    "Problem",
    "Protocol",
    "ablation",
    "load_problem",
    "own_problem",
    "read_cell",
    "rows_of",
    "run_bench",
    "run_problem",
    "write_cell",
]
