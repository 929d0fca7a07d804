"""Any ONNX graph as a frozen encoder: onnxruntime computes features, a head on top learns.

A graph takes one array of numbers. It cannot learn, so its features are computed once
(`surefind.learning.frozen`). Its stages are its other outputs, such as maps.

The file's bytes are a buffer of the module, so that a saved model holds its graph; the weights must be in
the file itself. Outputs of a graph:

    (n, d)                  features, as they are ("own")
    (n, t, d)               tokens: their mean ("mean"), or the first ("cls")
    (n, c, h, w)            a map: the mean over its positions ("mean")

A graph with a fixed batch size gets so many inputs at a time, the last ones repeated to fill it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefind.checks import check_choice, require
from surefind.errors import InputError

POOLINGS = ("auto", "own", "mean", "cls")
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}
"""What a graph may take, by onnxruntime's name."""
TRIAL_SIDE = 224
"""Of the images that a graph is tried with where its sides are free."""


class OnnxNet(nn.Module):
    """A graph that onnxruntime runs: inputs to features (n, d).

    Args:
        content: The file's bytes; or how many, for a module whose state is to be loaded.
        pooling: "auto" for what suits the output, or one of "own", "mean", "cls".
        output: Name of the output to take; None for the first.
        preprocessing: What it expects of images; None if unknown.
        width: Number of features d; None to find out.
        stages: How many other outputs are looked at; None to find out.

    Attributes:
        width: Number of features d.
        preprocessing: As given.
    """

    pretrained = True
    cannot_learn = True

    def __init__(
        self,
        content: bytes | int,
        *,
        pooling: str = "auto",
        output: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        width: int | None = None,
        stages: int | None = None,
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        if isinstance(content, int):
            graph = torch.zeros(content, dtype=torch.uint8)
        else:
            graph = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.graph: Tensor
        self.register_buffer("graph", graph)
        self.pooling, self.output = pooling, output
        self.preprocessing = None if preprocessing is None else dict(preprocessing)
        self._open: tuple[int, Any] | None = None
        count = len(self._stage_names(self._session())) if stages is None else stages
        self.stages = nn.ModuleList(nn.Identity() for _ in range(count))
        self.width = self._trial_width() if width is None else width
        self.eval()

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> "OnnxNet":
        """Read a file ``*.onnx``; options as the class takes them."""
        if not Path(path).is_file():
            raise InputError(f"there is no file {path}. Check the path.", field="source")
        return cls(Path(path).read_bytes(), **options)

    @property
    def recipe(self) -> dict[str, Any]:
        """What the same module is built from, without the graph; JSON can hold it."""
        return {
            "content": len(self.graph),
            "pooling": self.pooling,
            "output": self.output,
            "preprocessing": self.preprocessing,
            "width": self.width,
            "stages": len(self.stages),
        }

    @property
    def own_stages(self) -> tuple[str, ...]:
        """The modules that are looked at."""
        return tuple(f"stages.{i}" for i in range(len(self.stages)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute features (n, d); no gradient passes."""
        session = self._session()
        wanted = session.get_inputs()[0]
        self._check_shape(wanted.shape[1:], inputs)
        array = inputs.detach().cpu().numpy().astype(DTYPES[wanted.type], copy=False)
        size = wanted.shape[0] if isinstance(wanted.shape[0], int) else max(1, len(array))
        full = math.ceil(len(array) / size) * size
        rows = np.minimum(np.arange(full), len(array) - 1)
        names = [self._output_name(session), *self._stage_names(session)]
        parts = [
            session.run(names, {wanted.name: array[rows[i : i + size]]})
            for i in range(0, full, size)
        ]
        found, *stages = (
            torch.from_numpy(np.concatenate(part)[: len(array)]).to(inputs)
            for part in zip(*parts, strict=True)
        )
        for stage, output in zip(self.stages, stages, strict=True):
            stage(output)
        return self._features(found)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session out of copies, which open their own."""
        return {**self.__dict__, "_open": None}

    def _session(self) -> Any:
        """Open the graph, once for each content of the buffer."""
        if self._open is None or self._open[0] != self.graph._version:
            runtime = require("onnxruntime", "run ONNX files", extra="onnx")
            options = runtime.SessionOptions()
            options.log_severity_level = 3  # its warnings are about the exporter
            content = self.graph.cpu().numpy().tobytes()
            try:
                session = runtime.InferenceSession(
                    content, options, providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # of the runtime's own kinds
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise InputError(
                    f"onnxruntime cannot run this graph ({reason}). Copy or export the file "
                    "again, with its weights in it.",
                    field="source",
                ) from error
            self._check_inputs(session.get_inputs())
            self._open = self.graph._version, session
        return self._open[1]

    def _check_inputs(self, inputs: list[Any]) -> None:
        if len(inputs) != 1 or inputs[0].type not in DTYPES:
            came = ", ".join(f"{i.name} {i.type}" for i in inputs)
            raise InputError(
                f"the graph takes {came}; one array of floating-point numbers is expected, images "
                "or vectors.",
                field="source",
                hint="For texts, compute the vectors with onnxruntime and its tokenizer, and fit "
                "surefind.LaplaceHead to them.",
            )

    def _check_shape(self, sides: list[Any], inputs: Tensor) -> None:
        fits = len(sides) == inputs.ndim - 1 and all(
            not isinstance(want, int) or want == got
            for want, got in zip(sides, inputs.shape[1:], strict=True)
        )
        if not fits:
            shown = ", ".join(str(s) if isinstance(s, int) else "any" for s in sides)
            raise InputError(
                f"the graph takes inputs (n, {shown}); got {tuple(inputs.shape)}. Resize and crop images "
                "first.",
                field="inputs",
            )

    def _output_name(self, session: Any) -> str:
        names = [o.name for o in session.get_outputs()]
        if self.output is not None:
            check_choice("output", self.output, names)
        return self.output or str(names[0])

    def _stage_names(self, session: Any) -> list[str]:
        taken = self._output_name(session)
        return [
            o.name
            for o in session.get_outputs()
            if o.name != taken and o.type in DTYPES and len(o.shape or ()) in (2, 3, 4)
        ]

    def _features(self, found: Tensor) -> Tensor:
        pooling = self.pooling
        if pooling == "auto":
            pooling = "own" if found.ndim == 2 else "mean"
        if found.ndim == 3 and pooling == "cls":
            return found[:, 0]
        if found.ndim in (3, 4) and pooling == "mean":
            return found.mean(1) if found.ndim == 3 else found.mean((2, 3))
        if found.ndim == 2 and pooling == "own":
            return found
        raise InputError(
            f"the graph gives {tuple(found.shape)}, which pooling={self.pooling!r} does not make "
            "features (n, d) of.",
            field="pooling",
            hint="Take pooling='auto', or name another output of the graph.",
        )

    @torch.no_grad()
    def _trial_width(self) -> int:
        sides = self._session().get_inputs()[0].shape[1:]
        shape = [side if isinstance(side, int) else TRIAL_SIDE for side in sides]
        return int(self(torch.zeros(1, *shape)).shape[1])
