import json

import numpy as np
import oracles
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import surefind as sf
from surefind.estimators.laplace_head import LaplaceHead, recall_among, relation_of_targets
from surefind.learning.closed_form import closed_form_head
from surefind.models.saving import save_tensors
from surefind.models.vectors import Vectors
from surefind.posterior.fit import tune_prior_precision


@pytest.fixture
def vectors():
    g = np.random.default_rng(7)
    labels = np.arange(60) % 5
    return g.standard_normal((5, 6))[labels] + 0.7 * g.standard_normal((60, 6)), labels


@pytest.fixture
def few():
    return np.random.default_rng(0).standard_normal((7, 3)), [0, 0, 1, 1, 1, 2, 0]


def some_pairs(n=7):
    left, right, same = zip((0, 1, True), (2, 3, True), (0, 4, False), (5, 1, False), strict=True)
    return sf.PairList(torch.tensor(left), torch.tensor(right), torch.tensor(same), n)


# Not with all defaults: tuning takes longer than all the rest, a hundred times.
GIVEN = {"scale": 60, "prior_precision": 1.0}


@parametrize_with_checks([LaplaceHead(**GIVEN)])
@pytest.mark.slow
def test_is_an_estimator_as_scikit_learn_defines_it(estimator, check):
    check(estimator)


def oracle_precision(X, weights, kind, distance, margin, scale):
    """Fixed curvature of a head by autograd, pair by pair, with δ = 0.5."""
    h = torch.from_numpy(np.c_[X / np.sqrt((X**2).sum(1, keepdims=True)), np.ones(len(X))])
    targets = oracles.pair_targets(kind, oracles.normalize(h @ weights.T), margin)
    matrix = oracles.head_gauss_newton(weights, h, targets, distance, "fixed")
    kept = matrix.diagonal().view_as(weights).clamp(min=0)
    return scale * kept + 0.5


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("y", ["labels", "positions", "pairs"])
def test_posterior_is_exact_over_every_pair(few, distance, y):
    X, labels = few
    positions = np.random.default_rng(1).uniform(0, 90, (7, 2))
    target, kind = {
        "labels": (labels, oracles.class_kind(labels)),
        "positions": (positions, oracles.position_kind(torch.from_numpy(positions), 25, 50)),
        "pairs": (
            some_pairs(),
            oracles.listed_kind([(0, 1, True), (2, 3, True), (0, 4, False), (5, 1, False)], 7),
        ),
    }[y]
    head = LaplaceHead(distance=distance, margin=2.0, prior_precision=0.5).fit(X, target)
    expected = oracle_precision(X, head.posterior_.mean, kind, distance, 2.0, scale=7.0)
    torch.testing.assert_close(head.posterior_.precision, expected)
    assert head.pair_scan_error_ == 0.0
    assert head.scale_ == 7.0
    assert head.clipped_ == head.posterior_.clipped


def test_prior_and_scale_can_be_given(few):
    X, y = few
    given = LaplaceHead(prior_precision=3, scale=100).fit(X, y)
    assert (given.prior_precision_, given.scale_) == (3.0, 100.0)
    kept = given.posterior_.precision - 3
    tuned = LaplaceHead(scale=100).fit(X, y)
    assert tuned.scale_ == 100.0
    torch.testing.assert_close(tuned.posterior_.precision - tuned.prior_precision_, kept)
    best = LaplaceHead(prior_precision="evidence", scale=100).fit(X, y).prior_precision_
    mean = given.posterior_.mean
    assert best == pytest.approx(tune_prior_precision(mean, kept / 100, scale=100.0))


def test_scale_and_prior_are_tuned_on_the_fitted_rows(vectors):
    X, y = vectors
    head, nominal = LaplaceHead().fit(X, y), LaplaceHead(scale=60).fit(X, y)
    factor = head.scale_ / 60
    assert head.prior_precision_ == pytest.approx(factor * nominal.prior_precision_)
    torch.testing.assert_close(head.posterior_.precision, factor * nominal.posterior_.precision)
    places = np.random.default_rng(0).uniform(0, 100, (60, 2))
    assert LaplaceHead().fit(X, places).scale_ == 60  # nothing to calibrate by


def test_tuning_does_not_depend_on_the_dtype_of_x(vectors):
    X, y = vectors
    one, two = LaplaceHead().fit(X, y), LaplaceHead().fit(X.astype(np.float32), y)
    assert two.scale_ == pytest.approx(one.scale_, rel=1e-5)
    np.testing.assert_allclose(one.uncertainty(X), two.uncertainty(X), rtol=1e-4)


@pytest.mark.parametrize("structure", ["kronecker", "dense"])
def test_weights_may_vary_together(vectors, structure, tmp_path):
    X, y = vectors
    head = LaplaceHead(4, structure=structure, **GIVEN).fit(X, y)
    assert head.posterior_.structure == structure
    assert np.isfinite(head.uncertainty(X)).all()
    head.set_params(structure="diagonal").save(tmp_path / "head")  # what was fitted counts
    again = LaplaceHead.load(tmp_path / "head")
    np.testing.assert_array_equal(again.uncertainty(X), head.uncertainty(X))


def test_the_length_of_a_vector_does_not_matter(vectors):
    X, y = vectors
    longer = X * np.random.default_rng(0).uniform(0.1, 10, (60, 1))
    one, other = LaplaceHead(**GIVEN).fit(X, y), LaplaceHead(**GIVEN).fit(longer, y)
    np.testing.assert_allclose(one.uncertainty(X), other.uncertainty(longer))


def test_says_what_the_posterior_predicts(vectors):
    X, y = vectors
    head = LaplaceHead(4, **GIVEN).fit(X, y)
    h = torch.from_numpy(np.c_[X / np.linalg.norm(X, axis=1, keepdims=True), np.ones(60)])
    expected = head.posterior_.predict(h).numpy()
    found = head.embed(X)
    np.testing.assert_allclose(found.mean, expected.mean)
    np.testing.assert_allclose(found.kappa, expected.kappa)
    np.testing.assert_array_equal(head.transform(X), found.mean)
    np.testing.assert_allclose(head.uncertainty(X), 1 / found.kappa)
    assert head.get_feature_names_out().tolist() == [f"laplacehead{i}" for i in range(4)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_give_arrays_and_tensors_tensors(vectors, dtype):
    X, y = vectors[0].astype(dtype), vectors[1]
    arrays = LaplaceHead(**GIVEN).fit(X, y).embed(X)
    rows = torch.from_numpy(X)
    tensors = LaplaceHead(**GIVEN).fit(rows, torch.from_numpy(y)).embed(rows)
    assert isinstance(arrays.mean, np.ndarray)
    assert isinstance(tensors.mean, torch.Tensor)
    assert arrays.mean.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_array_equal(tensors.mean.numpy(), arrays.mean)
    np.testing.assert_array_equal(tensors.kappa.numpy(), arrays.kappa)
    half = torch.from_numpy(vectors[0]).bfloat16()
    assert LaplaceHead(**GIVEN).fit(half, y).transform(half).dtype == torch.float32


def test_mapped_and_blockwise_input_is_the_same(vectors, tmp_path, monkeypatch):
    X, y = vectors
    expected = LaplaceHead().fit(X, y)
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr("surefind.models.vectors.BLOCK_ELEMENTS", 50)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = LaplaceHead().fit(mapped, y)
    torch.testing.assert_close(found.posterior_.precision, expected.posterior_.precision)
    np.testing.assert_allclose(found.uncertainty(mapped), expected.uncertainty(X))


def test_a_sampled_scan_states_its_error(vectors, monkeypatch):
    X, y = vectors
    exact = LaplaceHead(margin=2.0, **GIVEN).fit(X, y)
    sampled = LaplaceHead(margin=2.0, **GIVEN, scan_columns=30).fit(X, y)
    assert 0 < sampled.pair_scan_error_ < 1
    everything = LaplaceHead(margin=2.0, **GIVEN, scan_columns=60).fit(X, y)
    assert everything.pair_scan_error_ == 0
    torch.testing.assert_close(everything.posterior_.precision, exact.posterior_.precision)
    monkeypatch.setattr("surefind.curvature.pair_scan.EXACT_ROWS", 50)
    monkeypatch.setattr("surefind.curvature.pair_scan.COLUMNS", 30)
    by_itself = LaplaceHead(margin=2.0, **GIVEN).fit(X, y)
    assert torch.equal(by_itself.posterior_.precision, sampled.posterior_.precision)
    assert LaplaceHead(scan_columns="all", **GIVEN).fit(X, y).pair_scan_error_ == 0


def test_score_is_the_share_of_rows_that_find_their_like(vectors):
    X, y = vectors
    y = y.copy()
    y[7] = 99  # alone: it has nothing to find and does not count
    head = LaplaceHead(**GIVEN).fit(X, y)
    u = head.transform(X)
    hits = []
    for i in range(60):
        distance = ((u - u[i]) ** 2).sum(1)
        distance[i] = np.inf
        if i != 7:
            hits.append(y[distance.argmin()] == y[i])
    assert head.score(X, y) == pytest.approx(np.mean(hits))


def test_score_of_positions():
    X = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1.0]])
    y = np.array([[0, 0], [0, 10], [0, 500], [0, 900.0]])
    head = LaplaceHead(**GIVEN).fit(X, y)
    assert head.score(X, y) == 1.0  # rows 2 and 3 have no place in common with any
    assert head.score(X, y[[0, 2, 1, 3]]) == 0.0


@pytest.mark.slow
def test_works_in_a_pipeline_and_a_grid_search(vectors):
    X, y = vectors
    pipeline = make_pipeline(StandardScaler(), LaplaceHead(**GIVEN))
    grid = {"laplacehead__embedding_dim": [2, 4], "laplacehead__margin": [0.5, 1]}
    search = GridSearchCV(pipeline, grid, cv=GroupKFold(2)).fit(X, y, groups=y)
    assert 0 < search.best_score_ <= 1
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.transform(X).shape == (60, search.best_params_["laplacehead__embedding_dim"])
    assert clone(LaplaceHead(3, margin=1)).get_params()["margin"] == 1


def test_saved_heads_come_back_bit_for_bit(vectors, tmp_path):
    X, y = vectors
    head = LaplaceHead(np.int64(4), margin=np.float32(0.5), scan_columns=30, **GIVEN).fit(X, y)
    head.save(tmp_path / "head.safetensors")
    again = LaplaceHead.load(tmp_path / "head.safetensors")
    for one, other in ((head.embed(X), again.embed(X)),):
        np.testing.assert_array_equal(one.mean, other.mean)
        np.testing.assert_array_equal(one.kappa, other.kappa)
    assert again.get_params() == head.get_params()
    kept = ("prior_precision_", "scale_", "clipped_", "pair_scan_error_", "n_features_in_")
    for name in (*kept, "embedding_dim_"):
        assert getattr(again, name) == getattr(head, name)
    assert again.fit(X, y).score(X, y) == head.score(X, y)


def test_saved_heads_remember_column_names(vectors, tmp_path):
    X = pandas.DataFrame(vectors[0], columns=list("abcdef"))
    head = LaplaceHead(**GIVEN).fit(X, vectors[1])
    head.save(tmp_path / "head")
    again = LaplaceHead.load(tmp_path / "head")
    assert again.feature_names_in_.tolist() == list("abcdef")
    np.testing.assert_array_equal(again.transform(X), head.transform(X))
    with pytest.raises(ValueError, match="feature names"):
        again.transform(X[list("bacdef")])


def test_files_that_cannot_be_saved_or_hold_something_else(vectors, tmp_path):
    X, y = vectors
    head = LaplaceHead(random_state=np.random.RandomState(0), **GIVEN).fit(X, y)
    with pytest.raises(sf.InputError, match="random_state is a generator"):
        head.save(tmp_path / "head")
    save_tensors(tmp_path / "other", {"x": torch.ones(1)}, {"kind": json.loads('"something"')})
    with pytest.raises(sf.InputError, match="does not hold a LaplaceHead"):
        LaplaceHead.load(tmp_path / "other")


def test_zero_rows_are_left_out_and_known_to_be_unknown(vectors):
    X, y = vectors
    hole = np.insert(X, 10, 0, axis=0)
    with pytest.warns(UserWarning, match="1 rows of X are zero, the first at 10"):
        head = LaplaceHead(**GIVEN).fit(hole, np.insert(y, 10, 3))
    expected = LaplaceHead(**GIVEN).fit(X, y)
    assert torch.equal(head.posterior_.precision, expected.posterior_.precision)
    found = head.embed(hole)
    assert found.kappa[10] == 0
    assert (np.delete(found.kappa, 10) > 0).all()
    assert np.isinf(head.uncertainty(hole)[10])
    places = np.random.default_rng(0).uniform(0, 100, (61, 2))
    with pytest.warns(UserWarning, match="rows of X are zero"):
        assert LaplaceHead().fit(hole, places).scale_ == 60
    with pytest.raises(sf.InputError, match="Leave these rows and their pairs out"):
        LaplaceHead().fit(hole, some_pairs(61))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("embedding_dim", value) for value in (1, 9)),
        *(("scan_columns", value) for value in ("some", 0)),
        *(("prior_precision", value) for value in (-1, "best")),
        *(("structure", "full"), ("distance", "cosine")),
        *(("margin", 0), ("scale", 0), ("positive_radius", -1)),
    ],
)
def test_options_are_checked_when_fitting(vectors, option, value):
    with pytest.raises(sf.InputError) as refusal:
        LaplaceHead(**{option: value}).fit(*vectors)
    assert refusal.value.field == option


def with_entry(X, value):
    broken = X.copy()
    broken[[3, 7], 2] = value
    return broken


NO_PAIR = sf.PairList(*torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool), 60)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda X, y: (with_entry(X, np.nan), y), sf.InputError, "X holds NaN in rows 3, 7"),
        (lambda X, y: (with_entry(X, -np.inf), y), sf.InputError, "X holds infinity in rows 3, 7"),
        (lambda X, y: (y, X), sf.InputError, r"2-d table.*\(60,\).*arguments are swapped"),
        (lambda X, y: (y.tolist(), X), sf.InputError, r"2-d table.*arguments are swapped"),
        (lambda X, y: (X[:, :1], y), ValueError, "minimum of 2 is required"),
        (lambda X, y: (X, y[:59]), sf.InputError, r"one label per row of X, \(60,\).* got \(59,\)"),
        (lambda X, y: (X, None), sf.InputError, "requires y to be passed"),
        (lambda X, y: (X, y * 0), sf.DegenerateError, "there is only one class"),
        (lambda X, y: (X, np.arange(60)), sf.DegenerateError, "no two examples are the same"),
        (lambda X, y: (X, NO_PAIR), sf.DegenerateError, "no two examples are the same"),
    ],
)
def test_bad_data_are_refused_in_a_sentence(vectors, change, error, message):
    with pytest.raises(error, match=message) as refusal:
        LaplaceHead(**GIVEN).fit(*change(*vectors))
    assert len(str(refusal.value)) < 300  # the data themselves are not printed


def test_data_that_differ_from_the_fit_are_refused(vectors):
    head = LaplaceHead(**GIVEN).fit(*vectors)
    with pytest.raises(sf.InputError, match="X holds NaN in rows 3, 7"):
        head.embed(with_entry(vectors[0], np.nan))
    with pytest.raises(ValueError, match="X has 5 features, but LaplaceHead is expecting 6"):
        head.embed(vectors[0][:, :5])
    with pytest.raises(sf.InputError, match="scan_columns"):
        LaplaceHead(scan_columns=20).fit(vectors[0][:7], some_pairs())


def test_classes_with_one_example_are_different_from_all_others(few):
    X, y = few
    head = LaplaceHead(margin=2.0, prior_precision=0.5).fit(X, y)
    assert y.count(2) == 1
    kind, mean = oracles.class_kind(y), head.posterior_.mean
    expected = oracle_precision(X, mean, kind, "arccos", 2.0, scale=7.0)
    torch.testing.assert_close(head.posterior_.precision, expected)


@pytest.fixture
def stretched():
    """Classes whose members differ mostly in two of five columns: whitening gains."""
    g = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 8)
    apart = np.array([0.1, 0.1, 0.1, 2, 2]) * g.standard_normal((240, 5))
    return g.standard_normal((30, 5))[labels] + apart, labels


def test_the_head_is_in_closed_form_and_its_posterior_is_fitted_there(stretched):
    X, y = stretched
    head = LaplaceHead(5, margin=2.0, prior_precision=0.5).fit(X, y)
    h = torch.from_numpy(np.c_[X / np.linalg.norm(X, axis=1, keepdims=True), np.ones(240)])
    labels = torch.from_numpy(y)
    W = closed_form_head(h[:, :-1], sf.Classes(labels), rows=5, field="y")
    torch.testing.assert_close(head.posterior_.mean, W)
    curvature = sf.dataset_curvature(h, h @ W.T, labels, distance="arccos", margin=2.0)
    torch.testing.assert_close(head.posterior_.precision, 240 * curvature.clamp(min=0) + 0.5)


def test_unseen_classes_gain_by_it(stretched):
    X, y = stretched
    seen, unseen = y < 20, y >= 20
    head = LaplaceHead(**GIVEN).fit(X[seen], y[seen])
    directions = torch.nn.functional.normalize(torch.from_numpy(X[unseen]), dim=1)
    plain = recall_among(directions, sf.Classes(torch.from_numpy(y[unseen])))
    assert head.score(X[unseen], y[unseen]) > plain + 0.1


def test_places_and_pairs_have_a_head_too():
    X, at = np.eye(8) + 0.1 * np.arange(8) ** 2, 10.0 * np.arange(8)[:, None] * [1, 0]
    pairs = sf.PairList(torch.arange(7), torch.arange(1, 8), torch.arange(7) < 5, 8)
    for relation, known in ((sf.Positions(torch.from_numpy(at)), at), (pairs, pairs)):
        head = LaplaceHead(**GIVEN).fit(X, known)
        h = torch.from_numpy(X / np.linalg.norm(X, axis=1, keepdims=True))
        W = closed_form_head(h, relation, field="y")
        torch.testing.assert_close(head.posterior_.mean, W)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
def test_heads_may_be_narrow_structured_and_saved(stretched, structure, tmp_path):
    X, y = stretched
    start = LaplaceHead(3, structure=structure, scale=100, prior_precision=1).fit(X, y)
    assert start.transform(X).shape == (240, 3)
    outputs = start.posterior_.mean @ Vectors(X).features(slice(None)).T
    torch.testing.assert_close(outputs.mean(1), torch.zeros(3).double())  # centred, by the bias
    start.save(tmp_path / "head")
    again = LaplaceHead.load(tmp_path / "head")
    assert again.get_params() == start.get_params()
    np.testing.assert_array_equal(again.uncertainty(X), start.uncertainty(X))


def resolve(y, n=4):
    return relation_of_targets(y, n, positive_radius=1.0, negative_radius=2.0)


@pytest.mark.parametrize(
    "y",
    [
        [0, 0, 1, 1],
        ["a", "a", "b", "b"],
        np.array([3.0, 3.0, -1.0, -1.0]),
        np.array([True, True, False, False]),
        torch.tensor([7, 7, 9, 9]),
        np.array([[1], [1], [2], [2]]),
    ],
    ids=str,
)
def test_labels_of_any_kind(y):
    relation = resolve(y)
    assert isinstance(relation, sf.Classes)
    assert (relation.n_positive, relation.n_negative) == (4, 8)


def test_positions_and_relations_are_taken_as_they_are():
    places = resolve(np.array([[0, 0], [0, 1], [0, 5], [0, 6.5]], dtype=np.float32))
    assert isinstance(places, sf.Positions)
    assert (places.positive_radius, places.negative_radius) == (1.0, 2.0)
    assert resolve(places) is places


@pytest.mark.parametrize(
    "y", [None, [0, 1, 1], np.zeros((4, 3)), [0.5, 1.0, 1.0, 2.0], [np.nan, 1.0, 1.0, 2.0]], ids=str
)
def test_what_cannot_be_labels_is_refused(y):
    with pytest.raises(sf.InputError) as refusal:
        resolve(y)
    assert refusal.value.field == "y"


def test_what_cannot_be_judged_is_refused(directions):
    x = directions(4, 3)
    one = torch.tensor([0])
    pairs = sf.PairList(one, one + 1, torch.tensor([True]), 4)
    with pytest.raises(sf.InputError, match="a PairList does not judge every pair"):
        recall_among(x, pairs)
    with pytest.raises(sf.DegenerateError, match="no row has another of its own kind"):
        recall_among(x, sf.Classes(torch.arange(4)))
