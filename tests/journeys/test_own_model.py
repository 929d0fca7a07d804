"""A PyTorch model that was trained elsewhere, for another purpose, and the photographs it never saw."""

import numpy as np
import pytest
import torch
from newcomer import digits, truth, wrong_matches
from sklearn.datasets import load_sample_images

import surefind as sf

pytestmark = pytest.mark.nightly

MAX_WRONG = 0.1


def classifier():
    """Train a classifier as anybody would, with nothing of surefind."""
    torch.default_generator.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)
    )
    last = torch.nn.Linear(16, 10)
    inputs = torch.as_tensor(digits().learn.images).float() / 255
    labels = torch.as_tensor(digits().learn.labels)
    optimizer = torch.optim.Adam([*model.parameters(), *last.parameters()], lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(last(model(inputs)), labels).backward()
        optimizer.step()
    return model


def data(part):
    return sf.Dataset(part.images[:, None], part.labels)


@pytest.fixture(scope="module")
def asked():
    """The model with a posterior, and a gallery that it filled."""
    model = classifier()
    before = [p.clone() for p in model.parameters()]
    learn, enrol, held_out = digits().learn, digits().enrol, digits().held_out
    known = np.flatnonzero(truth(held_out) >= 0)
    encoder = sf.Encoder(model[:-1], model[-1])
    learner = sf.MetricLearner(encoder, method="laplace-posthoc", epochs=0)
    unseen = sf.Dataset(held_out.images[known[:150], None], held_out.labels[known[:150]])
    learner.fit(data(learn), held_out=unseen)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    gallery = sf.Gallery()
    gallery.add(learner.embed(data(enrol)), labels=enrol.labels)
    rest = np.setdiff1d(np.arange(len(held_out.labels)), known[:150])
    queries = sf.Dataset(held_out.images[rest, None], held_out.labels[rest])
    gallery.calibrate(learner.embed(queries), truth(held_out)[rest], max_wrong=MAX_WRONG)
    return learner, gallery


def photographs():
    """Return patches of the two photographs that ship with scikit-learn, in the digits' format."""
    grey = [image.mean(axis=2).astype(np.uint8) for image in load_sample_images().images]
    corners = [(r, c) for r in range(0, 400, 80) for c in range(0, 600, 80)]
    patches = [image[r : r + 8, c : c + 8] for image in grey for r, c in corners]
    return np.stack(patches)[:, None]


def test_the_promise_holds_on_digits_that_nobody_showed_it(asked):
    learner, gallery = asked
    part = digits().asked
    answers = gallery.search(learner.embed(data(part)))
    assert wrong_matches(answers.decision, answers.label, truth(part)) <= MAX_WRONG


def test_photographs_are_not_taken_for_digits(asked):
    learner, gallery = asked
    answers = gallery.search(learner.embed(photographs()))
    assert (answers.decision == "match").mean() <= 0.02
    assert all(
        reason for reason, d in zip(answers.reasons, answers.decision, strict=True) if d != "match"
    )


def test_what_the_model_cannot_take_is_refused_in_words(asked):
    learner, gallery = asked
    with pytest.raises(sf.InputError, match="16"):
        learner.embed(np.zeros((2, 1, 16, 16), dtype=np.uint8))
    with pytest.raises(sf.InputError, match="Linear"):
        sf.Encoder(torch.nn.Flatten(), torch.nn.ReLU())
    with pytest.raises(sf.InputError):
        gallery.search(np.full((1, 16), np.nan))
