"""Decisions on neighbours from Chroma; here in this process, as `chromadb.HttpClient` with a server."""

import chromadb
from digits import decided


def search(vectors, labels, queries, k):
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    space = {"hnsw": {"space": "cosine", "ef_construction": 400, "ef_search": 400}}
    digits = client.create_collection("digits", configuration=space, embedding_function=None)
    names = [{"label": label} for label in labels]
    digits.add([str(i) for i in range(len(labels))], embeddings=vectors, metadatas=names)
    found = digits.query(query_embeddings=queries, n_results=k)
    return found["distances"], [[m["label"] for m in row] for row in found["metadatas"]]


METRIC = "cosine-distance"
if __name__ == "__main__":
    decided(METRIC, search)
