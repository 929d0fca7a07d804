import threading

import pytest
import torch

import surefind as sf
from surefind.data.batches import random_batches, read_batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import Preprocessing

AUGMENT = Preprocessing(
    resize=12, crop=10, random_area=(0.2, 1.0), flip=True, mean=(0.5,) * 3, std=(0.5,) * 3
)


@pytest.fixture
def files(save_image):
    return Dataset(ImageFiles([save_image(f"{i}.jpg", size=(30 + i, 20)) for i in range(17)]))


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("surefind-read")]


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("ahead", [0, 3])
def test_order_and_bits_do_not_depend_on_the_workers(files, generator, workers, ahead):
    batches = random_batches(17, 4, generator)
    loaded = list(
        read_batches(
            files, batches, preprocessing=AUGMENT, augment_seed=(7, 3), workers=workers, ahead=ahead
        )
    )
    assert [rows.tolist() for rows, _ in loaded] == [rows.tolist() for rows in batches]
    for rows, inputs in loaded:
        expected = files.read(rows, preprocessing=AUGMENT, augment_seed=(7, 3))
        assert torch.equal(inputs, expected)
    assert not readers()


def test_a_broken_file_stops_the_workers_and_is_named(files):
    with open(files.inputs.paths[5], "wb") as file:
        file.write(b"broken")
    stream = read_batches(files, torch.arange(17).split(2), preprocessing=AUGMENT)
    with pytest.raises(sf.InputError, match=r"5\.jpg cannot be decoded"):
        list(stream)
    assert not readers()


def test_an_error_in_the_loop_stops_the_workers(files):
    def train():
        for _ in read_batches(files, torch.arange(17).split(2), preprocessing=AUGMENT):
            raise RuntimeError("the loss is NaN")

    with pytest.raises(RuntimeError, match="the loss is NaN"):
        train()
    assert not readers()


def test_counts_are_checked(files):
    with pytest.raises(sf.InputError, match="workers must be a whole number of at least 0"):
        read_batches(files, [], workers=-1)
    with pytest.raises(sf.InputError, match="ahead must be a whole number of at least 0"):
        read_batches(files, [], ahead=-2)
