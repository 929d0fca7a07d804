"""Decisions on neighbours from LanceDB, whose distance is by default the squared Euclidean."""

from tempfile import TemporaryDirectory

import lancedb
from digits import decided


def search(vectors, labels, queries, k):
    with TemporaryDirectory() as folder:
        rows = [{"vector": v, "label": label} for v, label in zip(vectors, labels, strict=True)]
        table = lancedb.connect(folder).create_table("digits", rows)
        found = [table.search(q).select(["label", "_distance"]).limit(k).to_list() for q in queries]
    distances = [[row["_distance"] for row in rows] for rows in found]
    return distances, [[row["label"] for row in rows] for rows in found]


METRIC = "squared-euclidean"
if __name__ == "__main__":
    decided(METRIC, search)
