"""Wrong arguments at the doors, as a user meets them: in a process without the tests' type checks."""

import subprocess
import sys

SCRIPT = """
import torch
import surefind as sf
from surefind.pairs.losses import Contrastive

h, z, y = torch.randn(4, 3), torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
u = torch.nn.functional.normalize(z, dim=1)
t = sf.pair_targets(y, u, margin=1)
calls = [
    lambda: sf.head_curvature(h, z, t, distance="cosine", approximation="fixed"),
    lambda: sf.head_curvature(h, z, t, distance="arccos", approximation="exact"),
    lambda: sf.dataset_curvature(h, z, y, distance="cosine", margin=1),
    lambda: sf.mine_pairs(y, u, kind="easy", max_pairs=5, margin=1, generator=torch.Generator()),
    lambda: Contrastive(negatives="outside"),
    lambda: sf.pair_targets(y, u, margin="wide"),
    lambda: sf.vmf_log_normalizer(torch.ones(1), 3.5),
    lambda: sf.MetricLearner(sf.Encoder(torch.nn.Identity(), torch.nn.Linear(3, 2))).fit(h),
]
for call in calls:
    try:
        call()
    except sf.InputError as error:
        print(type(error).__name__, error.field)
"""


def test_a_wrong_argument_is_refused_by_its_name():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "InputError distance",
        "InputError approximation",
        "InputError distance",
        "InputError kind",
        "InputError negatives",
        "InputError margin",
        "InputError dim",
        "InputError dataset",
    ]
