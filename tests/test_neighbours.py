import numpy as np
import pytest
import torch

from surefind import neighbours as module
from surefind.errors import DegenerateError, InputError
from surefind.neighbours import nearest, nearest_one, sampled_nearest


def slow(queries, gallery, k, own=False):
    """Sort every row by (-cosine, index), with distances from differences."""
    q = torch.nn.functional.normalize(queries.double(), dim=1)
    g = torch.nn.functional.normalize(gallery.double(), dim=1)
    rows = []
    for i in range(len(q)):
        squared = ((q[i] - g) ** 2).sum(1).tolist()
        others = [j for j in range(len(g)) if not (own and j == i)]
        rows.append(sorted(others, key=lambda j: (squared[j], j))[:k])
    return torch.tensor(rows)


@pytest.fixture(params=[(256, 2**22), (7, 77)], ids=["one block", "small blocks"])
def block(request, monkeypatch):
    monkeypatch.setattr(module, "ROWS", request.param[0])
    monkeypatch.setattr(module, "CELLS", request.param[1])


@pytest.mark.parametrize("z", [2, 3, 40])
@pytest.mark.parametrize("k", [1, 5, 29, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("block")
def test_neighbours_equal_a_full_sort(directions, z, k, dtype):
    queries, gallery = directions(31, z).to(dtype), directions(50, z).to(dtype)
    found = nearest(queries, gallery, k)
    assert torch.equal(found.indices, slow(queries, gallery, k))
    assert found.similarities.dtype == dtype
    expected = (queries @ gallery.T).gather(1, found.indices)
    torch.testing.assert_close(found.similarities, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("k", [1, 5, 12])
@pytest.mark.parametrize("cells", [2**22, 60 * 1000])
def test_wide_galleries_are_looked_at_in_groups(directions, monkeypatch, k, cells):
    monkeypatch.setattr(module, "CELLS", cells)
    x = directions(3001, 5).float()
    x[2900:] = x[:101]
    found = nearest(x[:50], x, k).indices
    assert torch.equal(found, slow(x[:50], x, k))


@pytest.mark.parametrize("k", [1, 10, 49])
@pytest.mark.usefixtures("block")
def test_a_row_does_not_find_itself(directions, k):
    x = directions(50, 3)
    found = nearest(x, x, k, exclude_self=True)
    assert torch.equal(found.indices, slow(x, x, k, own=True))


@pytest.mark.parametrize("spread", [1e-3, 1e-4, 1e-5])
@pytest.mark.usefixtures("block")
def test_collapsed_classes_are_told_apart_beyond_float32(directions, normal, spread):
    """Cosines here differ by 1e-7 … 1e-11: a float32 product returns noise."""
    x = directions(1, 3) + spread * normal(60, 3)
    x = torch.nn.functional.normalize(x, dim=1)
    assert torch.equal(nearest(x, x, 5, exclude_self=True).indices, slow(x, x, 5, own=True))
    single = x.float()
    found = nearest(single, single, 3, exclude_self=True).indices
    assert torch.equal(found, slow(single, single, 3, own=True))


@pytest.mark.parametrize("z", [3, 130])
@pytest.mark.usefixtures("block")
def test_equal_vectors_are_ordered_by_index(directions, z):
    x = directions(1, z).expand(45, z).clone()
    expected = slow(x, x, 20, own=True)
    assert torch.equal(nearest(x, x, 20, exclude_self=True).indices, expected)
    mixed = torch.cat([directions(3, z), x, directions(3, z), x[:9]])
    found = nearest(x[:2], mixed, 50).indices
    assert found[:, :50].tolist() == [[*range(3, 48), *range(51, 56)]] * 2


def test_lower_matrix_precision_is_not_trusted(directions, monkeypatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    used, propose = [], module._propose
    monkeypatch.setattr(
        module, "_propose", lambda q, *rest: used.append(q.dtype) or propose(q, *rest)
    )
    queries, gallery = directions(9, 4), directions(20, 4)
    assert torch.equal(nearest(queries, gallery, 3).indices, slow(queries, gallery, 3))
    assert used == [torch.float64]


def test_the_answer_is_the_same_again_and_in_another_order(directions):
    x = directions(200, 8).float()
    first, again = nearest(x, x, 7, exclude_self=True), nearest(x, x, 7, exclude_self=True)
    assert torch.equal(first.indices, again.indices)
    turned = nearest(x.flip(0), x.flip(0), 7, exclude_self=True)
    assert torch.equal(199 - turned.indices.flip(0), first.indices)


def test_arrays_are_taken_read_only_ones_too(directions):
    x = directions(10, 3)
    array = x.numpy().copy()
    array.flags.writeable = False
    assert torch.equal(nearest(array, array, 2).indices, nearest(x, x, 2).indices)


def test_gradients_are_not_followed(directions):
    x = directions(5, 3).requires_grad_()
    assert not nearest(x, x, 2).similarities.requires_grad


@pytest.mark.parametrize("kind", ["tensor", "iterator", "array"])
def test_neighbours_under_each_sample(directions, kind):
    samples = torch.stack([directions(30, 3) for _ in range(4)])
    given = {"tensor": samples, "iterator": iter(samples), "array": samples.numpy()}[kind]
    expected = torch.stack([slow(x, x, 1, own=True)[:, 0] for x in samples])
    assert torch.equal(sampled_nearest(given), expected)


@pytest.mark.parametrize(
    ("change", "k", "own", "field"),
    [
        (lambda x: (x, x), 0, False, "k"),
        (lambda x: (x, x), 7, False, "k"),
        (lambda x: (x, x), 6, True, "k"),
        (lambda x: (x[:, :2] / x[:, :2].norm(dim=1, keepdim=True), x), 1, False, "queries"),
        (lambda x: (x[:5], x), 1, True, "queries"),
        (lambda x: (x, 2 * x), 1, False, "gallery"),
        (lambda x: (x * torch.nan, x), 1, False, "queries"),
        (lambda x: (x, x[:0]), 1, False, "gallery"),
    ],
)
def test_what_cannot_be_compared_is_refused(directions, change, k, own, field):
    with pytest.raises(InputError) as refused:
        nearest(*change(directions(6, 3)), k, exclude_self=own)
    assert refused.value.field == field


def test_sampled_queries_meet_the_gallery_of_their_own_sample(directions):
    queries = directions(12, 3).reshape(3, 4, 3)
    galleries = directions(18, 3).reshape(3, 6, 3)
    found = sampled_nearest(queries, galleries)
    for s in range(3):
        for i in range(4):
            distances = [float((queries[s, i] - item).norm()) for item in galleries[s]]
            assert int(found[s, i]) == int(np.argmin(distances))


@pytest.mark.parametrize("z", [2, 3, 40, 700])
@pytest.mark.parametrize(
    "spread", [1.0, 1e-3, 1e-5], ids=["far apart", "close", "closer than float32"]
)
@pytest.mark.parametrize("own", [False, True], ids=["another gallery", "itself"])
@pytest.mark.usefixtures("block")
def test_the_nearest_alone_is_what_a_full_sort_finds(directions, z, spread, own):
    centre = directions(1, z).double()
    near = torch.nn.functional.normalize(centre + spread * directions(60, z).double(), dim=1)
    queries, gallery = (near, near) if own else (near[:25], near[25:])
    found = nearest_one(queries, gallery, exclude_self=own)
    assert torch.equal(found, slow(queries, gallery, 1, own=own)[:, 0])


def test_the_nearest_alone_prefers_the_first_of_equals():
    twice = torch.eye(4).repeat(3, 1)
    assert nearest_one(torch.eye(4), twice).tolist() == [0, 1, 2, 3]
    assert nearest_one(twice, twice, exclude_self=True)[:4].tolist() == [4, 5, 6, 7]
    assert nearest_one(torch.eye(2), torch.eye(2)[:1]).tolist() == [0, 0]


def test_samples_that_cannot_be_used_are_refused(directions):
    u = directions(6, 3)[None]
    for samples, gallery, error, field in (
        ([], None, DegenerateError, "samples"),
        (2 * u, None, InputError, "samples"),
        (u, 2 * u, InputError, "gallery"),
    ):
        with pytest.raises(error) as refused:
            sampled_nearest(samples, gallery)
        assert refused.value.field == field
