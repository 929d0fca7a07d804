"""Fixed curvature of any network's parameters.

For outputs z = f(θ, x) before normalisation, the diagonal over all pairs is

    diag Σ_i J_iᵀ A_i J_i = Σ_i Σ_e λ_ie (J_iᵀ q_ie)²,    A_i = Σ_e λ_ie q_ie q_ieᵀ

with J_i the Jacobian of example i and A_i the z × z block of `surefind.curvature.head` (for the
Euclidean distance it contains the linearised normalisation). That is z vector-Jacobian products an
example. For a linear last layer it equals `head_curvature` with "fixed".

The sum is over pairs, unscaled and unclipped. The module is only read: it runs through
`torch.func.functional_call`, in the mode that it is in.

Axes: ``n`` examples, ``z`` outputs.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from surefind.curvature.dataset import dataset_output_hessians
from surefind.curvature.head import Distance
from surefind.errors import InputError
from surefind.pairs.relations import Labels, blocks
from surefind.tensor_checks import check_matrix

CHUNK_ELEMENTS = 1 << 24
"""Numbers of per-example gradients held at a time: 64 MB in float32."""


def network_curvature(
    module: nn.Module,
    inputs: Tensor,
    labels: Labels,
    *,
    distance: Distance,
    margin: float,
    parameters: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute the diagonal of the "fixed" curvature for any of a network's parameters.

    Args:
        module: Maps inputs to outputs (n, z) before normalisation; in evaluation mode.
        inputs: The examples, first axis n.
        labels: A class per example, or a relation over them; every pair of them counts.
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which negative pairs repel.
        parameters: Names of the parameters; all of them by default.

    Returns:
        For each name a tensor of the parameter's shape: a sum over pairs, which may be negative.
    """
    everything = {k: v.detach() for k, v in module.named_parameters()}
    wanted = _chosen(everything, parameters)
    fixed = {k: v for k, v in everything.items() if k not in wanted}
    fixed |= {k: v.detach() for k, v in module.named_buffers()}

    def embed(params: dict[str, Tensor], one: Tensor) -> Tensor:
        output: Tensor = functional_call(module, {**fixed, **params}, (one[None],))
        return output[0]

    def pulled_back(one: Tensor, directions: Tensor) -> dict[str, Tensor]:
        back = vjp(lambda p: embed(p, one), wanted)[1]
        gradients: dict[str, Tensor] = vmap(back)(directions)[0]
        return gradients

    outputs = _outputs(module, inputs)
    A = dataset_output_hessians(outputs, labels, distance=distance, margin=margin).dense()
    values, vectors = torch.linalg.eigh(A)
    total = {k: torch.zeros_like(v) for k, v in wanted.items()}
    width = outputs.shape[1] * sum(v.numel() for v in wanted.values())
    for at in blocks(slice(0, len(inputs)), max(1, CHUNK_ELEMENTS // width)):
        gradients = vmap(pulled_back)(inputs[at], vectors[at].mT)
        for name, g in gradients.items():
            total[name] += torch.einsum("ne,ne...->...", values[at], g * g)
    return total


def _chosen(everything: dict[str, Tensor], names: Iterable[str] | None) -> dict[str, Tensor]:
    if names is None:
        return everything
    names = list(names)
    unknown = [name for name in names if name not in everything]
    if unknown or not names:
        raise InputError(
            f"parameters must name parameters of the module; got {unknown or 'none'}. "
            f"It has: {', '.join(everything)}."
        )
    return {name: everything[name] for name in names}


def _outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """Run the module, and refuse one whose answer to an example depends on chance or company."""
    # Copies of the buffers and a forked generator: in training mode, running it would change both.
    state = {k: v.clone() for k, v in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        outputs: Tensor = functional_call(module, state, (inputs,))
        check_matrix("the module's outputs", outputs, rows=len(inputs))
        again = functional_call(module, state, (inputs[:2],))
    if not torch.allclose(outputs[:2], again, rtol=1e-3, atol=1e-5):
        raise InputError(
            "the module does not give an example the same output twice (dropout, or batch norm in "
            "training mode). Call module.eval() first."
        )
    return outputs
