import pytest
import torch

import surefind as sf
from surefind.data.dataset import (
    Dataset,
    Splits,
    open_set_split,
    query_gallery_split,
    validation_split,
)


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


def test_open_set_takes_the_first_classes_in_order():
    data = labelled([3, 1, 0, 1, 2, 3, 0], classes="abcd")
    splits = open_set_split(data)
    assert splits.train.labels.tolist() == [1, 0, 1, 0]
    assert splits.test.labels.tolist() == [3, 2, 3]
    assert splits.test.classes == tuple("abcd")
    assert_partition(splits, 7)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.99])
def test_open_set_classes_are_disjoint(generator, share):
    data = labelled([i % 10 for i in range(50)])
    splits = open_set_split(data, train_share=share, generator=generator)
    train, test = (set(splits[p].labels.tolist()) for p in ("train", "test"))
    assert not train & test
    assert len(train) == min(max(round(10 * share), 1), 9)
    assert_partition(splits, 50)


def test_queries_leave_a_gallery(generator):
    data = labelled([0] * 5 + [1] * 2 + [2] * 3)
    splits = query_gallery_split(data, generator, queries_per_class=2)
    assert splits["query"].labels.tolist() == [0, 0, 1, 2, 2]
    assert splits["gallery"].labels.tolist() == [0, 0, 0, 1, 2]
    assert_partition(splits, 10)


@pytest.mark.parametrize(
    ("singles", "query", "gallery"),
    [
        ("gallery", [0], [0, 1]),
        ("query", [0, 1], [0]),
        ("drop", [0], [0]),
    ],
)
def test_a_single_image_is_query_or_gallery_by_policy(generator, singles, query, gallery):
    splits = query_gallery_split(labelled([0, 0, 1]), generator, singles=singles)
    assert splits["query"].labels.tolist() == query
    assert splits["gallery"].labels.tolist() == gallery


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


@pytest.mark.parametrize(("singles", "count"), [("train", 1), ("drop", 0)])
def test_a_single_image_stays_in_training_or_goes(generator, singles, count):
    splits = validation_split(labelled([0, 0, 1]), generator, singles=singles)
    assert int((splits.train.labels == 1).sum()) == count
    assert splits["validation"].labels.tolist() == [0]


def test_the_same_generator_gives_the_same_parts():
    data = labelled([i % 5 for i in range(50)])
    for cut in (query_gallery_split, validation_split):
        one, two, other = (cut(data, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
        assert all(rows(one[p]) == rows(two[p]) for p in one)
        assert any(rows(one[p]) != rows(other[p]) for p in one)


def test_what_cannot_be_split_is_refused(generator):
    with pytest.raises(sf.DegenerateError, match="toy has 1 classes; two are needed"):
        open_set_split(labelled([0, 0]))
    with pytest.raises(sf.DegenerateError, match="cannot be split: 0 classes give queries"):
        query_gallery_split(labelled([0, 1]), generator)
    with pytest.raises(sf.DegenerateError, match="toy has no class with two images"):
        validation_split(labelled([0, 1]), generator)
    with pytest.raises(sf.InputError, match="toy has no labels"):
        open_set_split(Dataset(torch.zeros(2, 2), name="toy"))
    with pytest.raises(sf.InputError, match=r"share must lie strictly between 0 and 1; got 1\.0"):
        validation_split(labelled([0, 0]), generator, share=1.0)
    with pytest.raises(sf.InputError, match="by must be one of 'example', 'class'"):
        validation_split(labelled([0, 0]), generator, by="image")
    with pytest.raises(sf.InputError, match="singles must be one of"):
        validation_split(labelled([0, 0]), generator, singles="gallery")
    with pytest.raises(sf.InputError, match="queries_per_class must be a whole number"):
        query_gallery_split(labelled([0, 0]), generator, queries_per_class=0)


def test_refusing_single_images_names_the_class(generator):
    with pytest.raises(sf.DegenerateError, match="class 'b' of toy has a single image"):
        query_gallery_split(labelled([0, 0, 1], classes="ab"), generator, singles="refuse")
    with pytest.raises(sf.DegenerateError, match="class 1 of toy has a single image"):
        validation_split(labelled([0, 0, 1]), generator, singles="refuse")


def test_cut_by_place_keeps_squares_whole_and_both_sides_together():
    east = torch.arange(0, 50_000, 25.0, dtype=torch.float64)
    both = torch.stack([east.repeat(2), torch.zeros(2 * len(east))], dim=1)
    data = Dataset(torch.zeros(len(both), 3), positions=both)
    parts = validation_split(data, torch.Generator().manual_seed(0), by="place")
    squares = [set((parts[p].positions[:, 0] // 2500).long().tolist()) for p in parts]
    assert not squares[0] & squares[1]
    assert len(squares[1]) == 2
    assert len(parts["validation"]) == 2 * 2 * 100


def test_places_in_one_square_cannot_be_cut():
    data = Dataset(torch.zeros(4, 3), positions=torch.rand(4, 2))
    with pytest.raises(sf.DegenerateError):
        validation_split(data, torch.Generator().manual_seed(0), by="place")


def test_a_cut_by_place_needs_positions():
    data = Dataset(torch.zeros(4, 3), [0, 0, 1, 1])
    with pytest.raises(sf.InputError) as refused:
        validation_split(data, torch.Generator().manual_seed(0), by="place")
    assert refused.value.field == "by"
