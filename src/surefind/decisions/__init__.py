"""When a top answer may be called a match, and when a person should look."""

from surefind.decisions.calibration import Calibration, calibrate
from surefind.decisions.decision import Decisions
from surefind.decisions.groups import GroupThreshold
from surefind.decisions.probability import Contribution, Contributions
from surefind.decisions.risk import RiskCurve
from surefind.decisions.signals import Signals, neighbour_signals

__all__ = [
    "Calibration",
    "Contribution",
    "Contributions",
    "Decisions",
    "GroupThreshold",
    "RiskCurve",
    "Signals",
    "calibrate",
    "neighbour_signals",
]
