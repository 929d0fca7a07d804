"""An encoder: a backbone, a linear head, and the sphere.

    h = backbone(x),    z = W h + b,    u = z / |z|

The posteriors see the head alone. With a bias, its matrix is [W b] and the features are [h 1], so that
z = [W b] [h 1] either way: `Encoder.features` appends the one and `Encoder.head_weights` the column.

Policy: a zero output has no direction. It stays zero, and gradients pass through it unscaled, so that
neither holds a NaN; doors that need unit vectors refuse it by name.

Axes: ``n`` examples, ``d`` features, ``z`` outputs.
"""

import torch
from torch import Tensor, nn

from surefind.errors import InputError
from surefind.tensor_checks import check_matrix


class Unnormalized(nn.Module):
    """Backbone and head without the sphere: inputs to outputs (n, z).

    Its parameters have the names that they have in the encoder.
    """

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs (n, z) before normalisation."""
        outputs: Tensor = self.head(plain_features(self.backbone, self.head, inputs))
        return outputs


class Encoder(nn.Module):
    """A backbone with a linear head whose outputs are projected to the unit sphere.

    Args:
        backbone: Maps inputs to features (n, d).
        head: A linear layer from d features to z outputs, with a bias or without.

    Raises:
        InputError: If the head is not a linear layer.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        if not isinstance(head, nn.Linear):
            raise InputError(
                f"head must be a torch.nn.Linear; got {type(head).__name__}. "
                "Put every other layer into the backbone."
            )
        self.backbone = backbone
        self.head: nn.Linear = head

    @property
    def embedding_dim(self) -> int:
        """Number of outputs z."""
        return self.head.out_features

    @property
    def unnormalized(self) -> nn.Module:
        """The same network without normalisation, sharing all parameters."""
        network = Unnormalized(self.backbone, self.head)
        network.training = self.training
        return network

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute unit embeddings (n, z)."""
        return on_sphere(self.outputs(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        """Compute what posteriors of the head take: (n, d), with a last column of ones if it has a bias."""
        features = plain_features(self.backbone, self.head, inputs)
        if self.head.bias is None:
            return features
        return torch.cat([features, features.new_ones(len(features), 1)], dim=1)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Compute the outputs (n, z) before normalisation."""
        outputs: Tensor = self.head(plain_features(self.backbone, self.head, inputs))
        return outputs

    def outputs_of(self, features: Tensor) -> Tensor:
        """Apply the head to what `features` returned: outputs (n, z)."""
        outputs: Tensor = self.head(features[:, : self.head.in_features])
        return outputs

    def head_weights(self) -> Tensor:
        """Return a copy of the head's weights (z, d), or (z, d + 1) with the bias as last column."""
        weight = self.head.weight.detach()
        if self.head.bias is None:
            return weight.clone()
        return torch.cat([weight, self.head.bias.detach()[:, None]], dim=1)

    def with_head(self, weights: Tensor) -> "Encoder":
        """Build an encoder with another head on the same backbone; this one stays as it is.

        Args:
            weights: In the form of `head_weights`; the number of rows may differ.

        Returns:
            The new encoder. It shares the backbone and holds a copy of the weights.

        Raises:
            InputError: If the number of columns is not the head's.
        """
        check_matrix("weights", weights)
        d, bias = self.head.in_features, self.head.bias is not None
        if weights.shape[1] != d + bias:
            form = f"{d + 1} columns, the last one the bias" if bias else f"{d} columns, no bias"
            raise InputError(f"weights must have {form}; got shape {tuple(weights.shape)}.")
        head = empty_head(d, len(weights), bias=bias, like=self.head.weight)
        with torch.no_grad():
            head.weight.copy_(weights[:, :d])
            if bias:
                head.bias.copy_(weights[:, d])
        encoder = Encoder(self.backbone, head.train(self.head.training))
        encoder.training = self.training
        return encoder


def on_sphere(outputs: Tensor) -> Tensor:
    """Divide each row of (n, z) by its length; a zero row stays zero."""
    length = torch.linalg.vector_norm(outputs, dim=1, keepdim=True)
    return outputs / torch.where(length > 0, length, 1)


def empty_head(d: int, z: int, *, bias: bool, like: Tensor | None = None) -> nn.Linear:
    """Build a linear layer from d to z, like another's dtype and device, with weights to be filled in."""
    device = torch.device("cpu") if like is None else like.device
    dtype = torch.float32 if like is None else like.dtype
    return nn.Linear(d, z, bias=bias, device="meta", dtype=dtype).to_empty(device=device)


def plain_features(backbone: nn.Module, head: nn.Linear, inputs: Tensor) -> Tensor:
    """Run the backbone and require features (n, d) that the head can be applied to."""
    features: Tensor = backbone(inputs)
    expected = (len(inputs), head.in_features)
    shape = tuple(features.shape) if isinstance(features, Tensor) else None
    if shape != expected:
        hint = (
            "Give the head that many inputs, or resize the images to what the network was made for."
        )
        if shape is None:
            hint = "Wrap it in a module that picks and pools one tensor."
        elif len(shape) != 2:
            hint = "End it with pooling (surefind.models.networks.GeM) or torch.nn.Flatten."
        raise InputError(
            f"the backbone must give features {expected}, a row per example and a column per input "
            f"of the head; got {shape or type(features).__name__}. {hint}"
        )
    return features
