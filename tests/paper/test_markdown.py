import pytest

from surefind.paper.page import markdown_tables
from surefind.paper.published import PAPER, Published
from surefind.paper.results import read_results


@pytest.fixture
def written(put):
    return lambda *results, **options: markdown_tables(read_results(put(*results)), **options)


def table_rows(text):
    return [
        [c.strip() for c in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_best_second_spread_and_seeds_are_marked(written, result):
    text = written(
        *(result("pfe", s, values={"auroc": 0.9 + s / 100}) for s in range(3)),
        *(result("hib", s, values={"auroc": 0.5 + s / 50}) for s in range(3)),
        result("mc-dropout", 7, values={"auroc": 0.2}),
    )
    rows = {r[0]: r for r in table_rows(text)}
    assert rows["Method"] == ["Method", "seeds", "AUROC ↑"]
    assert rows["PFE"] == ["PFE", "3", "**0.910 ± 0.010**"]
    assert rows["HIB"] == ["HIB", "3", "_0.520 ± 0.020_"]
    assert rows["MC dropout"] == ["MC dropout", "1 (7)", "0.200?"]
    assert "different seeds" in text
    assert "a paired t-test" in text
    assert "? — " in text


def test_distance_baselines_have_their_own_block_and_take_no_rank_in_retrieval(written, result):
    baseline = result("mahalanobis", values={"recall@1": 0.99, "auroc": 0.99})
    text = written(result("pfe", values={"recall@1": 0.8, "auroc": 0.9}), baseline)
    rows = table_rows(text)
    assert [r[0] for r in rows[2:]] == ["PFE", "_distance baselines_", "Mahalanobis"]
    assert rows[2][2].startswith("**0.800**")
    assert rows[2][3] == "_0.900_"
    assert rows[4][2].startswith("0.990")
    assert rows[4][3] == "**0.990**"
    assert "best at: AUROC (Mahalanobis)." in text


def test_one_seed_shows_intervals_and_says_what_they_are(written, result):
    a = result("pfe", values={"recall@1": 0.8}, intervals={"recall@1": [0.7, 0.9]})
    b = result("hib", values={"recall@1": 0.75}, intervals={"recall@1": [0.7, 0.8]})
    text = written(a, b)
    rows = {r[0]: r for r in table_rows(text)}
    assert rows["PFE"][2] == "**0.800** (0.700–0.900)"
    assert rows["HIB"][2] == "≈ _0.750_ (0.700–0.800)"
    assert "the 95 % bootstrap intervals overlap" in text
    assert "paired t-test" not in text


def test_the_ablation_has_a_table_of_its_own(written, result):
    text = written(
        result(), result("laplace-online-arccos-fixed"), result("laplace-posthoc-euclidean-full")
    )
    ablation = table_rows(text.split("### Ablation")[1])
    assert ablation[0][:4] == ["Stage", "Distance", "Approximation", "seeds"]
    assert [r[:3] for r in ablation[2:]] == [
        ["post-hoc", "euclidean", "full"],
        ["online", "arccos", "fixed"],
    ]


def test_mixed_versions_are_said_over_the_table(written, result):
    text = written(result(), result("pfe", versions={"surefind": "0.2.0"}))
    before = text.split("| Method")[0]
    assert "**Mixed versions.**" in before
    assert "0.2.0 measured 1 (pfe-seed0.json)" in before
    assert "Mixed" not in written(result(), result("pfe"))


def test_the_papers_numbers_are_compared_with_a_sentence_for_what_differs(written, result):
    text = written(
        result(values={"recall@1": 0.9, "auroc": 0.985, "ece": 0.2}),
        published=PAPER,
        remarks={"fashion-mnist/laplace-online": "Because of this."},
    )
    comparison = text.split("### Comparison with the paper")[1]
    rows = table_rows(comparison)
    assert rows[2] == [
        "LAM (online)",
        "1",
        "0.900 / 0.81 ± 0.00",
        "0.985 / 0.98 ± 0.01",
        "0.200 / 0.02 ± 0.00",
    ]
    said = next(line for line in comparison.splitlines() if line.startswith("- "))
    assert said == (
        "- LAM (online): recall@1 0.900 against 0.81 (better), ECE 0.200 against 0.02 (worse). "
        "Because of this."
    )


def test_precision_is_not_compared_where_the_fraction_of_ood_inputs_differs(written, result):
    values = {"auroc": 0.9, "auprc": 0.2}
    same = written(result("pfe", values=values), published=PAPER)
    assert "AUPRC 0.200 against 0.46 (worse)" in same
    fewer = {"train": 54000, "test": 10000, "ood": 5000}
    text = written(result("pfe", values=values, examples=fewer), published=PAPER)
    assert "AUROC 0.900 against 0.53 (better)" in text
    assert "AUPRC 0.200 against" not in text


def test_a_set_that_was_not_published_has_no_such_table(written, result):
    assert "Comparison" not in written(result(dataset="digits"), published=PAPER)
    nothing = Published("nobody", {"fashion-mnist": {"laplace-online": {"other": (0.5, None)}}})
    assert "Comparison" not in written(result(), published=nothing)


def sets(**aurocs):
    """Make the record of OOD sets from their AUROC by κ and by novelty."""
    return {
        name: {"kind": "near" if name == "cifar100" else "far", "examples": 10}
        | dict(zip(("auroc", "novelty_auroc"), both, strict=False))
        for name, both in aurocs.items()
    }


def test_ood_sets_have_columns_and_means_of_their_kind(written, result):
    text = written(
        result(ood=sets(mnist=(0.6, 0.9), noise=(0.8, 1.0), cifar100=(0.7, 0.5))),
        result("pfe", values={"auroc": 0.95}, ood=sets(mnist=(0.95,))),
        result("hib", values={"auroc": 0.65}),
        result("margin", ood=sets(mnist=(0.5,), noise=(0.4,), cifar100=(0.3,))),
        result("deterministic", ood={"mnist": {"examples": 10, "nearest_distance_auroc": 0.91}}),
    )
    table = table_rows(text.split("### Out-of-distribution sets")[1])
    assert table[0] == [
        *("Method", "By", "seeds", "MNIST ↑", "Noise ↑", "far mean ↑", "CIFAR100 ↑", "near mean ↑")
    ]
    rows = {(r[0], r[1]): [c.strip("*_?") for c in r[3:]] for r in table[2:]}
    assert rows["LAM (online)", "κ"] == ["0.600", "0.800", "0.700", "0.700", "0.700"]
    assert rows["LAM (online)", "novelty"] == ["0.900", "1.000", "0.950", "0.500", "0.500"]
    assert rows["PFE", "κ"] == ["0.950", "–", "–", "–", "–"]
    assert rows["HIB", "κ"] == ["0.650", "–", "–", "–", "–"]  # measured before there were sets
    assert rows["Deterministic", "nearest distance"][0] == "0.910"
    baseline = rows["Top-1/top-2 margin", "own score"]
    assert baseline == ["0.500", "0.400", "0.450", "0.300", "0.300"]
    assert "More OOD sets: 10 of Noise, 10 of CIFAR100." in text
    assert "### Out-of" not in written(result("pfe", dataset="digits")).split("## FashionMNIST")[0]
