"""Answers as a table, as records, and for Arrow and pandas."""

import json

import numpy as np
import pytest

from surefind.decisions.answers import Answers
from surefind.errors import InputError
from surefind.labels.posterior import LabelPosterior


def objects(*values):
    return np.fromiter(values, dtype=object, count=len(values))


def answered(**known):
    posterior = LabelPosterior(["a", 7], [[0.9, 0.05], [0.4, 0.35], [0.0, 0.0]], [0.05, 0.25, 1.0])
    decided = {
        "probability": np.array([0.97, 0.5123, 0.0]),
        "decision": np.array(["match", "review", "no_match"]),
        "reasons": objects(
            (), ("unclear input", "labels compete: 0.53 a, 0.47 7"), ("not enrolled",)
        ),
        "novelty": np.array([0.5, 0.2, 0.01]),
        "kappa": np.array([10.0, np.inf, 3.0]),
    }
    return Answers.of(posterior, **{**decided, **known})


def searched():
    return answered(
        ids=np.array([["x", 1], ["y", 2], [3, "z"]], dtype=object),
        neighbour_labels=np.array([["a", None], ["a", 7], [7, "a"]], dtype=object),
        scores=np.array([[0.9, 0.8], [0.7, 0.6], [0.5, 0.4]]),
        payload=np.array([[{"n": 1}, None], [None, None], [None, None]], dtype=object),
        stale=True,
    )


def test_a_printed_table_has_five_rows_at_most():
    assert str(answered()).splitlines() == [
        "query  label  probability  decision  reason",
        "    0  a            0.970  match",
        "    1  a            0.512  review    unclear input; labels compete: 0.53 a…",
        "    2  None         0.000  no_match  not enrolled",
    ]
    many = answered()[np.arange(30) % 3]
    lines = str(many).splitlines()
    assert len(lines) == 7
    assert lines[-1] == "30 queries: 10 match, 10 no_match, 10 review"
    assert max(map(len, lines)) <= 88
    plain = Answers.of(LabelPosterior(["a long name of a label"], [[1.0]] * 7))
    assert "a long name of …               not calibrated" in str(plain)
    assert str(plain).splitlines()[-1] == "7 queries"


def test_some_of_the_answers_are_those_of_the_queries():
    some = searched()[np.array([2, 0])]
    assert len(some) == 2
    assert some.label.tolist() == [None, "a"]
    assert some.ids.tolist() == [[3, "z"], ["x", 1]]
    assert some.reasons.tolist() == [("not enrolled",), ()]
    assert some.stale


def test_records_are_what_json_can_hold():
    records = json.loads(json.dumps(searched().records(), allow_nan=False))
    assert records[0] == {
        "label": "a",
        "label_probability": [
            {"label": "a", "probability": 0.9},
            {"label": 7, "probability": 0.05},
        ],
        "none": 0.05,
        "decision": "match",
        "probability": 0.97,
        "reasons": [],
        "kappa": 10.0,
        "novelty": 0.5,
        "neighbours": [
            {"id": "x", "label": "a", "score": 0.9, "payload": {"n": 1}},
            {"id": 1, "label": None, "score": 0.8, "payload": None},
        ],
    }
    assert records[1]["kappa"] is None
    assert records[2]["label_probability"] == []
    bare = Answers.of(LabelPosterior(["a"], [[1.0]])).records()[0]
    assert [bare[name] for name in ("decision", "probability", "none", "novelty", "kappa")] == (
        [None] * 5
    )
    assert (bare["reasons"], bare["neighbours"]) == ([], [])


def test_tables_of_arrow_have_the_same_columns_whatever_is_known():
    full, bare = searched().to_arrow(), Answers.of(LabelPosterior([3], [[1.0]])).to_arrow(ids=[9])
    assert full.schema == bare.schema
    assert full.column_names[:4] == ["query", "label", "probability", "decision"]
    rows = full.to_pylist()
    assert rows[1]["label_probability"][1] == {"label": "7", "probability": 0.35}
    assert rows[0]["neighbours"][1] == {"id": "1", "label": None, "score": 0.8, "payload": None}
    assert rows[0]["neighbours"][0]["payload"] == '{"n": 1}'
    assert [row["query"] for row in rows] == ["0", "1", "2"]
    assert all(row["stale"] for row in rows)
    assert (
        bare.to_pylist()[0] | {"query": "9", "label": "3", "decision": None}
        == (bare.to_pylist()[0])
    )
    with pytest.raises(InputError):
        searched().to_arrow(ids=[1])


def test_a_data_frame_has_a_row_for_each_query():
    frame = searched().to_pandas(ids=["p", "q", "p"])
    assert frame["query"].tolist() == ["p", "q", "p"]
    assert frame["probability"].tolist() == [0.97, 0.5123, 0.0]
    assert list(frame["reasons"][1]) == ["unclear input", "labels compete: 0.53 a, 0.47 7"]
