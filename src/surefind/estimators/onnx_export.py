"""A fitted learner as one ONNX graph: inputs to direction, κ and novelty.

    inputs (n, …) float32  →  direction (n, z),  kappa (n),  novelty (n) where it was fitted

The graph holds everything that `MetricLearner.embed` does after inputs are prepared: the network, the
posterior of its head, the integral on the sphere in float64 (`surefind.posterior.sphere`), and novelty with
its references. The batch is free; all else has the shapes of the training data. What an input must look
like (channels, size, scale, normalisation) is in the file's metadata, as JSON under ``surefind.inputs``
and as a sentence under ``surefind.expects``.

Possible where κ has a closed form: a point estimate (κ = ∞), the Laplace methods with a diagonal or
Kronecker posterior of the head, PFE and HIB. Not a dense posterior, which needs an eigendecomposition for
each input; not MC dropout or an ensemble, which run many networks.

ONNX has no log(1 + x) and no e^x - 1, which keep the digits of a narrow posterior; both are written here by
Kahan's quotients, log(u)·x/(u - 1) and (u - 1)·x/log(u), which are exact to rounding although u is not.

Every file is checked before it is written: onnxruntime and PyTorch must agree, to ``tolerance`` in
directions and, relatively, in κ; and in novelty up to p-values of scores that differ by `SCORE_TOLERANCE`.

Axes: ``n`` inputs, ``d`` features, ``z`` embedding.
"""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefind.checks import check_positive, require
from surefind.data.batches import like_network
from surefind.data.inputs import InputSpec
from surefind.errors import InputError, NumericalError
from surefind.estimators.learner import MetricLearner, as_inputs
from surefind.files import write_atomically
from surefind.learning.feature_cache import as_kept
from surefind.learning.frozen import FrozenEmbedder
from surefind.learning.layered import watched
from surefind.learning.methods.contract import Embedder
from surefind.learning.methods.deterministic import PointEmbedder
from surefind.learning.methods.gaussian import GaussianEmbedder
from surefind.learning.seeds import seeded
from surefind.models.encoder import on_sphere
from surefind.models.layers import OUTPUT, Layers, StageWatch, encoder_places
from surefind.models.splitting import UpTo
from surefind.models.vectors import UnitRows
from surefind.novelty import CONFIDENCE, Novelty, upper_rates
from surefind.posterior.head import HeadPosterior, KroneckerPosterior, Posterior
from surefind.posterior.sphere import directions, resultant_on_one_grid, unit

TOLERANCE = 1e-5
SCORE_TOLERANCE = 1e-2
"""What a novelty score may differ by: neighbours are found in float32, where small distances cancel.

Of 256 digits through an untrained network, scores differ by up to 3e-3, and p by a rank at most.
"""
CHECKED = 8
"""Inputs that are made up for the check where none are given."""
INPUTS, OUTPUTS = "inputs", ("direction", "kappa", "novelty")
MEANINGS = {
    "direction": "unit vectors: compare them by inner products",
    "kappa": "concentration of each direction, higher is surer; infinite without uncertainty",
    "novelty": "p-value, small for an input unlike the training data",
}

Moments = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From plain features (n, d) and mean outputs (n, z) to mean and variance of a Gaussian output."""


@dataclass(frozen=True)
class OnnxExport:
    """What was written, and how far it is from PyTorch.

    Attributes:
        path: The file.
        outputs: Names of its outputs.
        expects: What it takes, in a sentence.
        checked: How many inputs were compared.
        direction_error: Largest difference of a direction's entries.
        kappa_error: Largest relative difference of κ; 0 where both are infinite.
    """

    path: Path
    outputs: tuple[str, ...]
    expects: str
    checked: int
    direction_error: float
    kappa_error: float


def export_onnx(
    learner: MetricLearner,
    path: str | Path,
    *,
    inputs: Any = None,
    tolerance: float = TOLERANCE,
) -> OnnxExport:
    """Write a fitted learner as an ONNX file, once onnxruntime agrees with PyTorch.

    Args:
        learner: A fitted learner.
        path: The file, ``*.onnx``; an older one is replaced.
        inputs: What to compare both with: a data set, or a tensor or array of what a data set takes. None
            makes up a few inputs, which says less about novelty than known ones do.
        tolerance: Largest difference of a direction's entries, and largest relative one of κ.

    Returns:
        What was written and measured.

    Raises:
        InputError: If the method has no closed form, or the network cannot be written as ONNX.
        NumericalError: If both disagree; nothing is written.
    """
    path = Path(path)
    check_positive("tolerance", tolerance)
    if path.suffix != ".onnx" or not path.parent.is_dir():
        raise InputError(
            f"path must be a file *.onnx in a folder that exists; got {path}.", field="path"
        )
    graph = ExportGraph(learner)
    batch = _example_inputs(learner, inputs)
    model = _written(graph, batch)
    direction_error, kappa_error = _compared(learner, _run(model, batch), batch, tolerance)
    expects = expectation(learner.input_spec_)
    checked = {
        "inputs": len(batch),
        "direction_error": direction_error,
        "kappa_error": kappa_error,
    }
    model.doc_string = f"surefind {version('surefind')}. Takes {expects}"
    about = {
        "version": version("surefind"),
        "method": learner.method_name or type(learner.method).__name__,
        "inputs": json.dumps(learner.input_spec_.to_dict()),
        "expects": expects,
        "outputs": json.dumps({name: MEANINGS[name] for name in graph.outputs}),
        "checked": json.dumps(checked),
    }
    helper = require("onnx.helper", "write ONNX files", extra="onnx")
    helper.set_model_props(model, {f"surefind.{key}": value for key, value in about.items()})
    write_atomically(path, model.SerializeToString())
    return OnnxExport(path, graph.outputs, expects, len(batch), direction_error, kappa_error)


class ExportGraph(nn.Module):
    """All of a learner's embedding as one module of tensors, without checks or branches.

    Args:
        learner: A fitted learner.

    Attributes:
        outputs: Names of what it gives.

    Raises:
        InputError: If the method has no closed form.
    """

    def __init__(self, learner: MetricLearner) -> None:
        super().__init__()
        embedder, model = learner.fitted, learner.layers_
        frozen = embedder if isinstance(embedder, FrozenEmbedder) else None
        upper = embedder if frozen is None else frozen.upper
        posterior = getattr(upper, "posterior", None)
        self._of_layers = model is not None and model.posterior is not None
        if model is not None and model.posterior is not None:
            posterior = model.posterior
            self._weights = posterior.mean
        self._moments = _moments(posterior if posterior is not None else upper)
        # The sphere does not care for a rotation: Kronecker posteriors are diagonal in another basis.
        self._turn = getattr(posterior, "left", None)
        network = upper.network
        # Copies, which a tracer may follow: the learner stays as it is.
        self.below = nn.Identity() if frozen is None else copy.deepcopy(frozen.cut.below)
        self.backbone, self.head = copy.deepcopy(network.backbone), network.head
        for part in (*self.below.modules(), *self.backbone.modules()):
            if isinstance(part, UpTo):
                part.traceable()
        if isinstance(upper, GaussianEmbedder):
            self.variance = upper.variance
        self._frozen = frozen is not None
        self._model = model
        self._novelty = None if model is None else model.novelty
        if (
            self._novelty is not None
        ):  # kept from here on: a constant of the graph, not a part of it
            upper_rates(len(self._novelty.known), CONFIDENCE)
        layers = Layers(()) if model is None else model.vector.layers
        below, above = (
            ({}, {}) if frozen is None else (frozen.cut.names_below, frozen.cut.names_above)
        )
        places = [
            f"below.{below[stage]}".rstrip(".")
            if stage in below and stage != OUTPUT
            else encoder_places([above.get(stage, stage)])[0]
            for stage in layers.names
        ]
        self._watch = StageWatch(self, layers, places)
        self.outputs = OUTPUTS if self._novelty is not None else OUTPUTS[:2]
        self.eval()

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute direction, κ and, where it was fitted, novelty."""
        with self._watch.watching():
            lower = self.below(inputs)
            if self._frozen:
                lower = as_kept(lower).to(lower.dtype)
            plain = self.backbone(lower)
            outputs, x = self.head(plain), plain
        if self._model is not None:
            x = self._model.vector(self._watch.take(inputs.shape[0]))
        if self._of_layers:
            plain, outputs = x, x @ self._weights[:, :-1].T + self._weights[:, -1]
        if self._moments is None:
            direction, kappa = on_sphere(outputs), torch.full_like(outputs[:, 0], torch.inf)
        else:
            moments = resultant_on_one_grid(*self._moments(plain, outputs))
            direction, kappa = directions(moments, outputs.dtype)
        if self._turn is not None:
            direction = direction @ self._turn.T
        if isinstance(self.backbone, UnitRows):  # nothing is known of a zero vector
            kappa = torch.where((plain != 0).any(1), kappa, torch.zeros_like(kappa))
        if self._novelty is None:
            return direction, kappa
        return direction, kappa, self._novelty.of(x, direction).to(kappa.dtype)


def expectation(spec: InputSpec) -> str:
    """Say what the graph takes, in a sentence."""
    if spec.kind == "vector":
        return f"float32 vectors (batch, {spec.shape[0]}), as the model was trained on."
    low, high = spec.value_range or (0.0, 1.0)
    colour = {"RGB": "red, green, blue", "L": "grey"}.get(
        spec.mode or "", f"{spec.shape[0]} channels"
    )
    shape = ", ".join(map(str, ("batch", *spec.shape)))
    sentence = f"float32 images ({shape}), {colour}, values from {low:g} to {high:g}"
    if (low, high) == (0, 1):
        sentence += " (8 bits divided by 255)"
    how = spec.preprocessing
    if how is not None and how.mean is not None:
        sentence += (
            f", then minus {list(how.mean)} and divided by {list(how.std or ())} per channel"
        )
    return f"{sentence}."


def _moments(embedder: Embedder | Posterior) -> Moments | None:
    """Choose how features become Gaussian outputs, None for points; refuse what has no closed form."""
    if isinstance(embedder, PointEmbedder):
        return None
    if isinstance(embedder, GaussianEmbedder):
        network, head = embedder.variance, embedder.encoder.head
        width = head.in_features + (head.bias is not None)
        return lambda plain, outputs: (
            unit(outputs) if embedder.unit_mean else outputs,
            network(_with_one(plain, width)).exp(),
        )
    posterior = embedder
    if isinstance(posterior, HeadPosterior):
        variance = (1 / posterior.precision).detach()

        def diagonal(plain: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
            width = plain.shape[1]
            spread = (plain * plain) @ variance[:, :width].T + variance[:, width:].sum(1)
            return outputs, spread

        return diagonal
    if isinstance(posterior, KroneckerPosterior):

        def kronecker(plain: Tensor, _outputs: Tensor) -> tuple[Tensor, Tensor]:
            h = _with_one(plain, posterior.mean.shape[1])
            spread = (h @ posterior.right) ** 2 @ (1 / posterior.precision).T
            return h @ posterior.mean.T @ posterior.left, spread

        return kronecker
    raise InputError(
        f"a {type(embedder).__name__} of this kind runs several networks, or an eigendecomposition, "
        "for each input, which an ONNX graph cannot. Exported are: deterministic; "
        "laplace-posthoc and laplace-online with a diagonal or Kronecker posterior of the head; pfe; hib.",
        field="method",
        hint="Fit such a posterior to the trained network: method 'laplace-posthoc' with epochs 0, or "
        "`surefind fit`.",
    )


def _with_one(plain: Tensor, width: int) -> Tensor:
    """Append the column of ones if the head has one more than the features."""
    return (
        plain if plain.shape[1] == width else torch.cat([plain, torch.ones_like(plain[:, :1])], 1)
    )


def _example_inputs(learner: MetricLearner, inputs: Any) -> Tensor:
    """Return a few prepared inputs: of those that are given, or made up as the model takes them."""
    spec, network = learner.input_spec_, learner.fitted.network
    if None in spec.shape:
        raise InputError(
            "the model takes images of any size, and a graph takes one.",
            field="preprocessing",
            hint="Train with a preprocessing that crops: sf.Preprocessing(resize=256, crop=224).",
        )
    if inputs is not None:
        return torch.cat([*learner.batches(as_inputs(inputs), 64)])
    generator = seeded(0, "export")
    shape = (CHECKED, *(side or 0 for side in spec.shape))
    if spec.kind == "vector":
        return like_network(torch.randn(shape, generator=generator), network)
    low, high = spec.value_range or (0.0, 1.0)
    images = low + (high - low) * torch.rand(shape, generator=generator)
    how = spec.preprocessing
    return like_network(images if how is None else how.normalise(images), network)


def _written(graph: ExportGraph, batch: Tensor) -> Any:
    """Write the graph as an ONNX model, its batch free."""
    table = _translations()
    try:
        with torch.no_grad(), _quietly():
            program = torch.onnx.export(
                graph,
                # Not one row: a batch of one would be taken for a constant.
                (batch[torch.arange(3) % len(batch)],),
                dynamo=True,
                verbose=False,
                input_names=[INPUTS],
                output_names=list(graph.outputs),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                custom_translation_table=table,
            )
    except Exception as error:  # of torch.export, of the translation of an operator
        # The exporter's own text is advice to its developers; what failed is in the cause.
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the network cannot be written as ONNX ({reason}).",
            field="learner",
            hint="Its forward must be plain PyTorch that torch.export can follow: no branches on values, "
            "and no network that runs outside of PyTorch.",
        ) from error
    assert program is not None
    return program.model_proto


def _translations() -> dict[Any, Any]:
    """Write what ONNX lacks by what it has."""
    op = require("onnxscript", "write ONNX files", extra="onnx").opset18

    def log1p(x: Any) -> Any:
        one = op.CastLike(1.0, x)
        u = op.Add(x, one)
        gap = op.Sub(u, one)
        none = op.Equal(gap, op.CastLike(0.0, x))
        return op.Where(none, x, op.Div(op.Mul(op.Log(u), x), op.Where(none, one, gap)))

    def expm1(x: Any) -> Any:
        one = op.CastLike(1.0, x)
        u = op.Exp(x)
        none = op.Equal(u, one)
        return op.Where(none, x, op.Div(op.Mul(op.Sub(u, one), x), op.Where(none, one, op.Log(u))))

    def searchsorted(
        sorted_sequence: Any,
        self: Any,
        out_int32: bool = False,
        right: bool = False,
        side: Any = None,
        sorter: Any = None,
    ) -> Any:
        below = op.Less(op.Unsqueeze(sorted_sequence, [0]), op.Unsqueeze(self, [1]))
        return op.ReduceSum(op.Cast(below, to=7), [1], keepdims=0)  # 7: int64

    aten = torch.ops.aten
    return {
        aten.log1p.default: log1p,
        aten.expm1.default: expm1,
        aten.searchsorted.Tensor: searchsorted,
    }


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter from reporting what is its own: operators of other libraries, its deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _run(model: Any, batch: Tensor) -> list[np.ndarray]:
    runtime = require("onnxruntime", "check ONNX files", extra="onnx")
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rows: list[list[np.ndarray]] = [
        session.run(None, {INPUTS: part.cpu().numpy()})
        for part in batch.split(64)  # type: ignore[no-untyped-call]
    ]
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def _compared(
    learner: MetricLearner, found: list[np.ndarray], batch: Tensor, tolerance: float
) -> tuple[float, float]:
    """Compare with what the learner itself embeds; refuse what differs."""
    wanted = learner.embed_batch(batch).numpy()
    direction = float(np.abs(found[0] - wanted.mean).max())
    both = np.isinf(wanted.kappa) & np.isinf(found[1])
    scale = np.where(wanted.kappa > 0, wanted.kappa, 1)
    with np.errstate(invalid="ignore"):
        kappa = float(np.where(both, 0.0, np.abs(found[1] - wanted.kappa) / scale).max())
    if not (direction <= tolerance and kappa <= tolerance):
        raise NumericalError(
            f"onnxruntime and PyTorch disagree: directions by {direction:.2g}, κ by a share of "
            f"{kappa:.2g}, where {tolerance:.2g} is allowed. Nothing was written.",
            field="tolerance",
            hint="A deep network in float32 may need a larger tolerance.",
        )
    if learner.layers_ is not None and learner.layers_.novelty is not None:
        _compare_novelty(learner, learner.layers_.novelty, batch, found[2])
    return direction, kappa


def _compare_novelty(
    learner: MetricLearner, novelty: Novelty, batch: Tensor, found: np.ndarray
) -> None:
    assert learner.layers_ is not None
    vector = learner.layers_.vector
    _, said = watched(learner.fitted, vector.layers, batch)
    score = novelty.score(vector(said), learner.embed_batch(batch).mean)
    shift = torch.tensor([[SCORE_TOLERANCE], [-SCORE_TOLERANCE]], device=score.device)
    least, most = (novelty.p_value(s).cpu().numpy() for s in score + shift)
    hair = 1e-6  # p-values are float32 in the graph
    wrong = np.flatnonzero((found < least - hair) | (found > most + hair))
    if len(wrong):
        row = wrong[0]
        raise NumericalError(
            f"onnxruntime and PyTorch disagree in novelty: p is {found[row]:.4g} where {least[row]:.4g} to "
            f"{most[row]:.4g} is right, for input {row}. Nothing was written.",
            field="inputs",
        )
