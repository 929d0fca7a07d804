"""Decisions on neighbours from Qdrant; here in this process, as `QdrantClient(url=…)` with a server."""

from digits import decided
from qdrant_client import QdrantClient, models


def search(vectors, labels, queries, k):
    client = QdrantClient(":memory:")
    client.create_collection(
        "digits", vectors_config=models.VectorParams(size=64, distance=models.Distance.COSINE)
    )
    payload = [{"label": label} for label in labels]
    client.upload_collection("digits", vectors, payload=payload, ids=range(len(labels)))
    requests = [models.QueryRequest(query=q.tolist(), limit=k, with_payload=True) for q in queries]
    found = [answer.points for answer in client.query_batch_points("digits", requests)]
    scores = [[point.score for point in points] for points in found]
    return scores, [[point.payload["label"] for point in points] for points in found]


METRIC = "cosine"
if __name__ == "__main__":
    decided(METRIC, search)
