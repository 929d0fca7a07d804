"""Data sets of PyTorch: read in order, or refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import surefind as sf
from surefind.data.dataset import as_dataset
from surefind.errors import InputError

VECTORS = torch.arange(24.0).reshape(8, 3)
LABELS = torch.arange(8) % 2


class Listed(torch.utils.data.Dataset):
    def __init__(self, *examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, row):
        return self.examples[row]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(3), 0)])


PAIRS = TensorDataset(VECTORS, LABELS)
READ = {
    "pairs": PAIRS,
    "arrays": Listed(*([x.numpy(), np.int64(y)] for x, y in PAIRS)),
    "ours": sf.Dataset(VECTORS, LABELS),
}


@pytest.mark.parametrize("name", READ)
def test_every_example_is_read_once_in_order(name):
    found = as_dataset("dataset", READ[name])
    assert torch.equal(found.read(), VECTORS)
    assert torch.equal(found.labels, LABELS)


def test_inputs_alone_have_no_labels():
    assert as_dataset("dataset", TensorDataset(VECTORS)).labels is None
    assert as_dataset("dataset", Listed(*VECTORS)).labels is None


def test_subsets_names_and_half_precision():
    found = as_dataset("dataset", Subset(PAIRS, [5, 2]))
    assert torch.equal(found.read(), VECTORS[[5, 2]])
    named = as_dataset(
        "dataset", Listed((VECTORS[0].bfloat16(), "cat"), (VECTORS[1].bfloat16(), "dog"))
    )
    assert named.classes == ("cat", "dog")


def test_pictures_of_pillow_become_channels_first():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 10, 3), dtype=np.uint8)
    found = as_dataset("dataset", Listed(*((Image.fromarray(p), i) for i, p in enumerate(pixels))))
    assert np.array_equal(np.asarray(found.inputs), pixels.transpose(0, 3, 1, 2))
    grey = as_dataset("dataset", Listed((Image.fromarray(pixels[0, :, :, 0]), 0)))
    assert grey.read().shape == (1, 1, 9, 10)


REFUSED = {
    "no data": [VECTORS],
    "iterable": Stream(),
    "loader": DataLoader(PAIRS),
    "empty": Listed(),
    "three parts": Listed((VECTORS[0], 1, 2)),
    "dict": Listed({"image": VECTORS[0], "label": 0}),
    "half labelled": Listed((VECTORS[0], 1), (VECTORS[1],)),
    "several labels": Listed((VECTORS[0], torch.tensor([1, 0]))),
    "fractions": Listed((VECTORS[0], 0.5)),
    "texts": Listed(("a text", 1)),
    "sizes": Listed((torch.zeros(3, 8, 8), 0), (torch.zeros(3, 9, 8), 1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_as_a_whole_is_refused(name):
    with pytest.raises(InputError) as refusal:
        as_dataset("held_out", REFUSED[name])
    assert refusal.value.field == "held_out"
