"""Answers as a table: every field, in types that do not depend on the values, through files and back."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery

DIM, PEOPLE = 8, 12
NEIGHBOUR = pa.struct([
    ("id", pa.string()),
    ("label", pa.string()),
    ("score", pa.float64()),
    ("kappa", pa.float64()),
    ("payload", pa.string()),
])
SCHEMA = pa.schema([
    ("query", pa.string()),
    ("label", pa.string()),
    ("probability", pa.float64()),
    ("decision", pa.string()),
    ("reasons", pa.list_(pa.string())),
    ("gate", pa.string()),
    ("novelty", pa.float64()),
    ("kappa", pa.float64()),
    ("none", pa.float64()),
    ("candidates", pa.list_(pa.string())),
    ("label_probability", pa.list_(pa.float64())),
    ("neighbours", pa.list_(NEIGHBOUR)),
    ("stale", pa.bool_()),
])


def people(n, seed, *, novelty=True):
    rng = np.random.default_rng(seed)
    who = rng.integers(PEOPLE, size=n)
    mean = np.random.default_rng(0).normal(size=(PEOPLE, DIM))[who] + 0.3 * rng.normal(
        size=(n, DIM)
    )
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    kappa = np.where(np.arange(n) % 3, rng.uniform(5, 50, n), np.inf)
    return Embeddings(mean, kappa, rng.random(n) ** 2 if novelty else None), who.tolist()


@pytest.fixture(scope="module")
def calibrated():
    """Items whose ids and labels are integers and texts, some without a label, some with a payload."""
    items, who = people(60, 1)
    gallery = Gallery()
    gallery.add(
        items,
        ids=[i if i % 2 else str(i) for i in range(60)],
        labels=[None if i % 10 == 0 else w if w % 2 else f"no. {w}" for i, w in enumerate(who)],
        payload=[{"path": f"Zoë/{i}.jpg", "at": [i, None]} if i % 4 else None for i in range(60)],
    )
    queries, who = people(300, 2)
    truth = [w if w % 2 else f"no. {w}" for w in who]
    gallery.calibrate(queries, truth, max_wrong=0.3, confidence=0.8, contributions=False)
    return gallery


def text(value):
    return None if value is None else str(value)


def expected(answers, ids):
    """Each row by definition, from the answers' own arrays."""
    rows = []
    for q in range(len(answers)):
        named = [c for c in range(5) if answers.candidates[q, c] is not None]
        decided = answers.decision is not None
        rows.append({
            "query": text(ids[q]),
            "label": text(answers.label[q]),
            "probability": answers.probability[q] if decided else None,
            "decision": answers.decision[q] if decided else None,
            "reasons": list(answers.reasons[q]) if decided else None,
            "gate": None if answers.gate is None else answers.gate[q],
            "novelty": None if answers.novelty is None else answers.novelty[q],
            "kappa": answers.kappa[q],
            "none": answers.none[q],
            "candidates": [text(answers.candidates[q, c]) for c in named],
            "label_probability": [answers.label_probability[q, c] for c in named],
            "neighbours": [
                {
                    "id": text(answers.ids[q, c]),
                    "label": text(answers.labels[q, c]),
                    "score": answers.scores[q, c],
                    "kappa": answers.item_kappa[q, c],
                    "payload": answers.payload[q, c],
                }
                for c in range(answers.k)
            ],
            "stale": answers.stale,
        })
    return rows


def decoded(rows):
    for row in rows:
        for near in row["neighbours"]:
            near["payload"] = None if near["payload"] is None else json.loads(near["payload"])
    return rows


def test_every_field_of_every_query(calibrated):
    answers = replace(calibrated.search(people(40, 3)[0], k=4), stale=True)
    ids = [f"q{i}" if i % 2 else i // 4 for i in range(40)]  # some twice
    table = answers.to_arrow(ids)
    assert table.schema == SCHEMA
    assert decoded(table.to_pylist()) == expected(answers, ids)
    assert set(map(type, answers.ids.ravel())) == {int, str}
    assert set(answers.gate) == {"unlike", "unusual", "pass"}
    assert answers.to_arrow()["query"].to_pylist() == [str(i) for i in range(40)]


def test_without_a_calibration_columns_are_null_and_of_the_same_type(calibrated):
    answers = calibrated.search(people(6, 3, novelty=False)[0], decide=False)
    table = answers.to_arrow()
    assert table.schema == SCHEMA
    assert decoded(table.to_pylist()) == expected(answers, range(6))
    unknown = ["probability", "decision", "reasons", "gate", "novelty"]
    assert [name for name in table.column_names if table[name].null_count] == unknown


def test_types_do_not_depend_on_the_values(calibrated):
    """No label anywhere, no payload, a single item: still the same table, so that they can be joined."""
    alone = Gallery()
    alone.add(people(1, 5)[0])
    table = alone.search(people(3, 6, novelty=False)[0]).to_arrow()
    assert table.schema == SCHEMA
    assert table["label"].to_pylist() == [None] * 3
    assert table["candidates"].to_pylist() == table["label_probability"].to_pylist() == [[]] * 3
    other = calibrated.search(people(3, 3)[0]).to_arrow()
    assert len(pa.concat_tables([table, other])) == 6
    assert table.to_pandas().dtypes.equals(other.to_pandas().dtypes)


def test_through_parquet_and_pandas_and_back(calibrated, tmp_path):
    for answers in (
        calibrated.search(people(20, 3)[0], k=3),
        calibrated.search(people(2, 3, novelty=False)[0], decide=False),
    ):
        table = answers.to_arrow()
        pq.write_table(table, tmp_path / "a.parquet")
        assert pq.read_table(tmp_path / "a.parquet") == table
        frame = answers.to_pandas()
        assert pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False) == table
        answers.to_pandas().to_parquet(tmp_path / "b.parquet")
        again = pandas.read_parquet(tmp_path / "b.parquet")
        assert pa.Table.from_pandas(again, schema=SCHEMA, preserve_index=False) == table


@pytest.mark.parametrize("ids", [["a"], ["a", 1.5], ["a", None], 7])
def test_ids_are_one_text_or_integer_for_each_query(calibrated, ids):
    answers = calibrated.search(people(2, 3)[0])
    with pytest.raises(InputError) as error:
        answers.to_arrow(ids)
    assert error.value.field == "ids"


@pytest.mark.parametrize(
    ("library", "method", "install"),
    [
        ("pyarrow", "to_arrow", "pip install pyarrow"),
        ("pyarrow", "to_pandas", "pip install pyarrow"),
        ("pandas", "to_pandas", "pip install pandas."),
    ],
)
def test_what_is_missing_is_named_when_it_is_needed(
    calibrated, monkeypatch, library, method, install
):
    answers = calibrated.search(people(2, 3)[0])
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match="is needed to make a") as error:
        getattr(answers, method)()
    assert install in str(error.value)
