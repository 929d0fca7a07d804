"""A search over HTTP with nothing but FAISS behind uvicorn: what `benchmarks/service.py` compares with.

``python benchmarks/bare_faiss.py VECTORS.npy exact|hnsw`` prints its address and serves. A request is that
of `POST /v1/search/vector`; the answer holds the ids and scores of the k nearest. There are no labels,
decisions, limits, tokens, counts or logs, and a search runs on the event loop.
"""

import json
import socket
import sys
from typing import Any

import faiss
import numpy as np
import uvicorn

LINKS, BUILD_BREADTH, BREADTH = 16, 64, 128
"""HNSW's M, efConstruction and efSearch."""


def main(file: str, kind: str) -> None:
    vectors = np.load(file)
    faiss.omp_set_num_threads(2)
    if kind == "exact":
        index: Any = faiss.IndexFlatIP(vectors.shape[1])
    else:
        index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = BUILD_BREADTH, BREADTH
    index.add(vectors)
    faiss.omp_set_num_threads(1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answer: Any = {"status": "ok"}
        if scope["path"] != "/healthz":
            asked = json.loads(body)
            queries = np.array(asked["vectors"], dtype=np.float32)
            scores, ids = index.search(queries, asked.get("k", 10))
            answer = {"ids": ids.tolist(), "scores": scores.tolist()}
        text = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
