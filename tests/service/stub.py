"""A learner that needs no training: every image is the same direction."""

import numpy as np
import torch

from surefind.embeddings import Embeddings

NEAR = [0.6, 0.8, 0.0]


class Spec:
    mode = "L"

    def prepare(self, data, **_):
        return torch.ones(1, 1, 4, 4)


class Encoder:
    """A learner that cannot embed black images, and fails all it is given with one."""

    encoder = torch.nn.Linear(1, 1)
    input_spec_ = Spec()

    def embed_batch(self, batch):
        if not batch.flatten(1).any(1).all():
            raise RuntimeError("no direction")
        mean = np.tile(NEAR, (len(batch), 1)).astype(np.float32)
        return Embeddings(mean, np.ones(len(batch)))
