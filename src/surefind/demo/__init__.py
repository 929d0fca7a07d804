"""The demo: what κ and novelty are for, shown on small images, with a page to look at."""

from surefind.demo.experiment import Findings, run_demo
from surefind.demo.page import write_page

__all__ = ["Findings", "run_demo", "write_page"]
