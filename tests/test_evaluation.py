import learning
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import surefind as sf
from surefind.evaluation import evaluate


@pytest.fixture(scope="module")
def fitted():
    return learning.learner("laplace-online", epochs=4).fit(learning.digits()[0])


@pytest.fixture(scope="module")
def noise():
    generator = torch.Generator().manual_seed(0)
    return sf.Dataset(torch.randint(256, (50, 8, 8), dtype=torch.uint8, generator=generator))


def test_numbers_equal_what_other_libraries_compute(fitted, noise, generator):
    _, test = learning.digits()
    result = evaluate(fitted, test, noise, generator=generator, ece_samples=10)
    known, strange = fitted.embed(test), fitted.embed(noise)
    assert result.values["recall@1"] == pytest.approx(learning.recall_at_1(known, test.labels))
    truth = np.r_[np.zeros(len(known)), np.ones(len(strange))]
    scores = np.r_[known.uncertainty, strange.uncertainty]
    assert result.values["auroc"] == pytest.approx(roc_auc_score(truth, scores))
    low, high = result.intervals["auroc"]
    assert low <= result.values["auroc"] <= high
    assert set(result.curves) == {"roc", "precision-recall", "sparsification", "calibration"}
    assert 0 <= result.values["ece"] <= 1


def test_a_point_estimate_has_no_numbers_for_what_needs_uncertainty(noise, generator):
    train, test = learning.digits()
    point = learning.learner("deterministic", epochs=1).fit(train)
    values = evaluate(point, test, noise, generator=generator).values
    assert "recall@1" in values
    assert not {"auroc", "ausc", "ece"} & set(values)


def test_unlabelled_or_tiny_test_data_are_refused(fitted, noise, generator):
    with pytest.raises(
        sf.InputError, match="labelled test data of more than 10 examples; got 50 without"
    ):
        evaluate(fitted, noise, generator=generator)
    with pytest.raises(sf.InputError, match="got 5 with labels"):
        evaluate(fitted, learning.digits()[1][:5], generator=generator)
