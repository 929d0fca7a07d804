"""Deep ensemble: several encoders from different starts, put into one space (Lakshminarayanan et al. 2017).

A loss of distances does not care for a rotation, so the members' spaces have nothing to do with
each other and averaging raw embeddings destroys them. Each member m is turned onto the first by the
orthogonal matrix

    R_m = argmin_R Σ_i |R u_i^(m) - u_i^(1)|² = U Vᵀ,    U S Vᵀ = Σ_i u_i^(1) u_i^(m)ᵀ   (Procrustes)

over the training data; reflections are allowed. An embedding is the mean of the turned members, κ follows
from their spread. With five members κ is coarse: that is the method's own limit.
"""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from surefind.checks import check_choice, check_int
from surefind.data.batches import apply
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.learning.methods.contract import Sampler, prefixed
from surefind.learning.methods.deterministic import restored_copy, trained_copy
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.models.encoder import Encoder
from surefind.models.networks import initialize
from surefind.posterior.sphere import sampled_embeddings

REDRAW = ("auto", "all", "head")


@dataclass(frozen=True, eq=False)
class EnsembleEmbedder:
    """Encoders, and the rotations that put them into the first one's space.

    Attributes:
        encoders: The members, in evaluation mode.
        rotations: (m, z, z), the identity first.
    """

    encoders: tuple[Encoder, ...]
    rotations: Tensor
    runs_network_once: ClassVar[bool] = True

    @property
    def network(self) -> Encoder:
        """The encoder of the first member."""
        return self.encoders[0]

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch: mean and spread of the turned members."""
        return sampled_embeddings(self._members(inputs))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws members: in turn if ``joint``, else at random for each input."""
        size = len(self.encoders)

        def draw(inputs: Tensor) -> Tensor:
            members = self._members(inputs)
            if joint:
                return members[torch.arange(n_samples) % size]
            chosen = torch.randint(size, (n_samples, len(inputs)), generator=generator)
            return members[chosen, torch.arange(len(inputs))]

        return draw

    def tensors(self) -> dict[str, Tensor]:
        """Return the members' states and the rotations."""
        tensors = {"rotations": self.rotations}
        for i, encoder in enumerate(self.encoders):
            tensors |= prefixed(f"member {i}", encoder.state_dict())
        return tensors

    @torch.no_grad()
    def _members(self, inputs: Tensor) -> Tensor:
        turned = [e(inputs) @ r.T for e, r in zip(self.encoders, self.rotations, strict=True)]
        return torch.stack(turned)


@dataclass(frozen=True)
class DeepEnsemble:
    """Train several encoders and align them.

    Attributes:
        members: How many.
        redraw: What a member's start differs in: "all" weights, or those of the "head" only; "auto"
            is the head for a tower of `transformers`, which is usually pretrained, and all otherwise.
            The first member starts as the encoder is.
    """

    members: int = 5
    redraw: str = "auto"

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> EnsembleEmbedder:
        """Train the members one after the other, each a stage, and align them."""
        check_int("members", self.members, least=2)
        check_choice("redraw", self.redraw, REDRAW)
        pretrained = getattr(encoder.backbone, "pretrained", False)
        head_only = self.redraw == "head" or (self.redraw == "auto" and pretrained)
        trained = []
        for i in range(self.members):
            start = copy.deepcopy(encoder)
            if i > 0:
                redrawn = start.head if head_only else start
                initialize(redrawn, seeded(session.config.seed, "member", i))
            config = replace(session.config, seed=session.config.seed + 1_000_003 * i)
            member = replace(session, config=config)
            # The first member is the point estimate: in a folder that is shared, it is trained once.
            stage = f"member {i}" if i else "encoder"
            kind = f"member {i}, {self.redraw}" if i else "point estimate"
            trained.append(trained_copy(start, dataset, member, stage=stage, kind=kind))
        preprocessing = session.config.preprocessing
        embeddings = [apply(e, dataset, e, preprocessing=preprocessing) for e in trained]
        rotations = [procrustes(u, embeddings[0]) for u in embeddings]
        return EnsembleEmbedder(tuple(trained), torch.stack(rotations))

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> EnsembleEmbedder:
        """Put the members together again."""
        members = [restored_copy(encoder, tensors, f"member {i}") for i in range(self.members)]
        return EnsembleEmbedder(tuple(members), tensors["rotations"])


def procrustes(source: Tensor, target: Tensor) -> Tensor:
    """Find the orthogonal R (z, z) with the smallest Σ |R source_i - target_i|²; use ``source @ R.T``."""
    left, _, right = torch.linalg.svd(target.double().T @ source.double())
    rotation: Tensor = (left @ right).to(source.dtype)
    return rotation
