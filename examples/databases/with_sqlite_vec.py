"""Decisions on neighbours from SQLite with the extension sqlite-vec."""

import apsw  # Python's own sqlite3 does as well, where it was built with extensions
import sqlite_vec
from digits import decided


def search(vectors, labels, queries, k):
    db = apsw.Connection(":memory:")
    db.enable_load_extension(True)
    db.load_extension(sqlite_vec.loadable_path())
    column = "v float[64] distance_metric=cosine"
    db.execute(f"CREATE VIRTUAL TABLE digits USING vec0({column}, +label text)")
    rows = [(v.tobytes(), label) for v, label in zip(vectors, labels, strict=True)]
    db.executemany("INSERT INTO digits (v, label) VALUES (?, ?)", rows)
    nearest = "SELECT distance, label FROM digits WHERE v MATCH ? AND k = ? ORDER BY distance"
    found = [list(db.execute(nearest, (q.tobytes(), k))) for q in queries]
    return [[d for d, _ in rows] for rows in found], [[n for _, n in rows] for rows in found]


METRIC = "cosine-distance"
if __name__ == "__main__":
    decided(METRIC, search)
