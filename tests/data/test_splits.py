import pytest
import torch

import surefind as sf
from surefind.data.dataset import Dataset, Splits, validation_split


def labelled(labels, **options):
    x = torch.arange(float(len(labels)))[:, None]
    return Dataset(x, torch.tensor(labels), name="toy", **options)


def rows(dataset):
    return dataset.inputs[:, 0].long().tolist()


def assert_partition(splits, n):
    assert sorted(r for p in splits for r in rows(splits[p])) == list(range(n))


def test_parts_are_found_by_name():
    data = labelled([0, 1])
    splits = Splits({"train": data[:1], "test": data[1:]})
    assert splits.train is splits["train"]
    assert splits.test is splits["test"]
    assert list(splits) == ["train", "test"]
    assert len(splits) == 2
    assert "query" not in splits
    with pytest.raises(sf.InputError, match="no part 'query' here; there is 'train', 'test'"):
        splits["query"]


def test_what_is_printed_is_a_line_however_large_the_set():
    data = labelled([0, 1] * 4000, names=map(str, range(8000)))
    assert repr(data) == "Dataset('toy', n=8,000, classes=2)"
    placed = Dataset(data.inputs[:3], positions=torch.zeros(3, 2))
    assert repr(Splits({"train": data, "query": placed})) == (
        "Splits(train=Dataset('toy', n=8,000, classes=2), "
        "query=Dataset('data', n=3, with positions))"
    )


def test_validation_takes_a_share_of_each_class(generator):
    data = labelled([0] * 40 + [1] * 20 + [2] * 2)
    splits = validation_split(data, generator, share=0.1)
    assert splits["validation"].labels.bincount().tolist() == [4, 2, 1]
    assert_partition(splits, 62)
    most = validation_split(data, generator, share=0.99)
    assert most.train.labels.bincount().tolist() == [1, 1, 1]


def test_validation_by_class_takes_whole_classes(generator):
    splits = validation_split(
        labelled([i % 10 for i in range(40)]), generator, share=0.2, by="class"
    )
    train, validation = (set(splits[p].labels.tolist()) for p in ("train", "validation"))
    assert (len(train), len(validation)) == (8, 2)
    assert not train & validation


def test_the_same_generator_gives_the_same_parts():
    data = labelled([i % 5 for i in range(50)])
    one, two, other = (validation_split(data, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert all(rows(one[p]) == rows(two[p]) for p in one)
    assert any(rows(one[p]) != rows(other[p]) for p in one)


def test_cut_by_place_keeps_squares_whole_and_both_sides_together():
    east = torch.arange(0, 50_000, 25.0, dtype=torch.float64)
    both = torch.stack([east.repeat(2), torch.zeros(2 * len(east))], dim=1)
    data = Dataset(torch.zeros(len(both), 3), positions=both)
    parts = validation_split(data, torch.Generator().manual_seed(0), by="place")
    squares = [set((parts[p].positions[:, 0] // 2500).long().tolist()) for p in parts]
    assert not squares[0] & squares[1]
    assert len(squares[1]) == 2
    assert len(parts["validation"]) == 2 * 2 * 100


def test_a_single_image_stays_in_training(generator):
    splits = validation_split(labelled([0, 0, 1]), generator)
    assert int((splits.train.labels == 1).sum()) == 1
    assert splits["validation"].labels.tolist() == [0]


UNLABELLED = Dataset(torch.zeros(2, 2), name="toy")
ONE_PLACE = Dataset(torch.zeros(4, 3), positions=torch.rand(4, 2))
REFUSED = [
    (labelled([0, 0]), {"by": "class"}, sf.DegenerateError, None),
    (labelled([0, 1]), {}, sf.DegenerateError, "by"),
    (UNLABELLED, {}, sf.InputError, None),
    (labelled([0, 0]), {"share": 1.0}, sf.InputError, "share"),
    (labelled([0, 0]), {"by": "image"}, sf.InputError, "by"),
    (ONE_PLACE, {"by": "place"}, sf.DegenerateError, None),
    (labelled([0, 0, 1, 1]), {"by": "place"}, sf.InputError, "by"),
]


@pytest.mark.parametrize(("data", "options", "error", "field"), REFUSED)
def test_what_cannot_be_split_is_refused(generator, data, options, error, field):
    with pytest.raises(error) as refused:
        validation_split(data, generator, **options)
    assert refused.value.field == field
