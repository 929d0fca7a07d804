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


PAIRS = torch.tensor([0, 0, 1, 1])
REFUSED = {
    "no example": (lambda g: random_batches(0, 4, g), sf.DegenerateError),
    "one example": (lambda g: random_batches(1, 4, g), sf.DegenerateError),
    "batches of one": (lambda g: random_batches(5, 1, g), sf.InputError),
    "one class a batch": (lambda g: class_batches(PAIRS, 1, 2, g), sf.InputError),
    "one example a class": (lambda g: class_batches(PAIRS, 2, 1, g), sf.InputError),
    "one class": (lambda g: class_batches(PAIRS[:2], 2, 2, g), sf.DegenerateError),
    "single images": (lambda g: class_batches(PAIRS[1:], 2, 2, g), sf.DegenerateError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_batch_is_refused(generator, name):
    draw, error = REFUSED[name]
    with pytest.raises(error):
        draw(generator)


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


def test_classes_of_one_image_are_left_out(generator):
    batches = class_batches(torch.tensor([0, 0, 0, 1, 1, 1, 2]), 3, 3, generator)
    assert not (torch.cat(batches) == 6).any()


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
