"""Which label a query has, when that may be called a match, and when a person should look."""

from surefind.decisions.calibration import Calibration, GroupThreshold, calibrate
from surefind.decisions.decider import Decider
from surefind.decisions.decision import Decisions, Gate, GateCounts
from surefind.decisions.drift import Alarm, Watch, WatchReport
from surefind.decisions.identification import Identification, OperatingPoint
from surefind.decisions.label_posterior import (
    LabelModel,
    LabelPosterior,
    Votes,
    fit_label_model,
    label_posterior,
)
from surefind.decisions.probability import Contribution, Contributions, Signals, neighbour_signals
from surefind.decisions.risk import RiskCurve
from surefind.decisions.verdicts import Verdicts

__all__ = [
    "Alarm",
    "Calibration",
    "Contribution",
    "Contributions",
    "Decider",
    "Decisions",
    "Gate",
    "GateCounts",
    "GroupThreshold",
    "Identification",
    "LabelModel",
    "LabelPosterior",
    "OperatingPoint",
    "RiskCurve",
    "Signals",
    "Verdicts",
    "Votes",
    "Watch",
    "WatchReport",
    "calibrate",
    "fit_label_model",
    "label_posterior",
    "neighbour_signals",
]
