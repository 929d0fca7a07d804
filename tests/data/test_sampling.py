import numpy as np
import pytest
import torch

import surefind as sf
from surefind.data.batches import class_batches, grid_cells, random_batches
from surefind.data.dataset import rows_by_class


@pytest.mark.parametrize(("n", "size"), [(2, 2), (3, 2), (10, 3), (9, 3), (11, 5), (7, 100)])
def test_random_batches_take_every_row_once(generator, n, size):
    batches = random_batches(n, size, generator)
    assert sorted(torch.cat(batches).tolist()) == list(range(n))
    assert all(2 <= len(b) <= size + 1 for b in batches)
    assert all(len(b) == size for b in batches[:-1])


def test_a_last_batch_of_one_joins_the_one_before(generator):
    assert [len(b) for b in random_batches(7, 3, generator)] == [3, 4]


def test_the_last_batch_can_be_dropped(generator):
    assert [len(b) for b in random_batches(8, 3, generator, drop_last=True)] == [3, 3]
    assert [len(b) for b in random_batches(9, 3, generator, drop_last=True)] == [3, 3, 3]


def test_the_order_comes_from_the_generator_alone():
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(40) % 7
        rows = random_batches(40, 6, generator) + class_batches(labels, 3, 4, generator)
        return torch.cat(rows).tolist()

    state = torch.get_rng_state()
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("n", "drop_last"), [(0, False), (1, False), (3, True)])
def test_too_few_examples_for_a_batch_are_refused(generator, n, drop_last):
    with pytest.raises(sf.DegenerateError, match=f"no batch can be made of {n} examples"):
        random_batches(n, 4, generator, drop_last=drop_last)


def test_sizes_are_checked(generator):
    with pytest.raises(sf.InputError, match="batch_size must be a whole number of at least 2"):
        random_batches(5, 1, generator)
    with pytest.raises(sf.InputError, match="n must be a whole number of at least 0"):
        random_batches(-1, 2, generator)
    labels = torch.tensor([0, 0, 1, 1])
    with pytest.raises(
        sf.InputError, match="classes_per_batch must be a whole number of at least 2"
    ):
        class_batches(labels, 1, 2, generator)
    with pytest.raises(
        sf.InputError, match="examples_per_class must be a whole number of at least 2"
    ):
        class_batches(labels, 2, 1, generator)
    with pytest.raises(sf.InputError, match="singles must be one of 'drop', 'repeat', 'keep'"):
        class_batches(labels, 2, 2, generator, singles="lose")
    with pytest.raises(
        sf.InputError, match=r"labels must be one integer per example; got torch\.float32"
    ):
        class_batches(labels.float(), 2, 2, generator)
    with pytest.raises(sf.InputError, match=r"of shape \(1, 4\)"):
        class_batches(labels[None], 2, 2, generator)


def test_class_batches_hold_p_classes_of_k(generator):
    labels = torch.arange(60) % 6
    batches = class_batches(labels, 3, 5, generator)
    assert len(batches) == 4
    for rows in batches:
        _, counts = labels[rows].unique(return_counts=True)
        assert counts.tolist() == [5, 5, 5]
        assert len(rows.unique()) == 15
    assert sorted(torch.cat(batches).tolist()) == list(range(60))


def test_classes_of_any_size_fill_their_groups(generator):
    sizes = [2, 3, 4, 7, 12]
    labels = np.repeat(np.arange(5) * 10, sizes)
    batches = class_batches(labels, 4, 4, generator)
    for rows in batches:
        classes, counts = np.unique(labels[rows], return_counts=True)
        assert len(classes) >= 2
        assert (counts == 4).all()
    seen = set(torch.cat(batches).tolist())
    assert seen >= set(range(16))
    first_of_seven = next(r for r in batches if (labels[r] == 30).any())
    assert len(set(first_of_seven[labels[first_of_seven] == 30].tolist())) == 4


def test_a_class_that_is_left_alone_ends_the_epoch(generator):
    labels = torch.tensor([0] * 20 + [1] * 2)
    batches = class_batches(labels, 2, 2, generator)
    assert len(batches) == 1
    assert labels[batches[0]].unique().tolist() == [0, 1]


@pytest.mark.parametrize(("singles", "count"), [("drop", 0), ("keep", 1), ("repeat", 3)])
def test_classes_of_one_image_follow_the_policy(generator, singles, count):
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    batches = class_batches(labels, 3, 3, generator, singles=singles)
    assert int((torch.cat(batches) == 6).sum()) == count
    assert all(len(b) >= 2 for b in batches)


@pytest.mark.parametrize(
    ("labels", "singles"), [([0, 0, 0], "keep"), ([0, 0, 1], "drop"), ([0, 1, 2], "drop")]
)
def test_class_batches_need_two_classes(generator, labels, singles):
    with pytest.raises(sf.DegenerateError, match="class batches need two classes"):
        class_batches(torch.tensor(labels), 2, 2, generator, singles=singles)


def test_only_single_images_still_make_batches_of_two(generator):
    batches = class_batches(torch.arange(5), 2, 2, generator, singles="keep")
    assert [len(b) for b in batches] == [2, 2]


def test_rows_are_listed_by_class():
    rows = rows_by_class(torch.tensor([5, 2, 5, 9, 2]))
    assert [r.tolist() for r in rows] == [[1, 4], [0, 2], [3]]


def test_examples_of_a_place_are_near_and_near_ones_meet_in_some_grid(generator):
    positions = 6e6 + 200 * torch.rand(60, 2, dtype=torch.float64, generator=generator)
    distance = torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist")
    together = torch.zeros(60, 60, dtype=torch.bool)
    for _ in range(200):
        place = grid_cells(positions, 25.0, generator)
        same = place[:, None] == place
        assert float(distance[same].max()) <= 25
        together |= same
    assert bool(together[distance < 15].all())
