"""Decisions on neighbours from Elasticsearch: what a search of a `dense_vector` field answers.

With a server, each query is `POST /digits/_search` with

    {"knn": {"field": "v", "query_vector": […], "k": 20, "num_candidates": 200}, "_source": ["label"]}

and its answer is read as below; here the answers are made, in the form that Elasticsearch documents, with
its score (1 + cosine) / 2.
"""

import numpy as np
from digits import decided


def answers(vectors, labels, queries, k):
    for cosines in queries @ vectors.T:
        hits = [
            {"_id": str(i), "_score": (1 + float(cosines[i])) / 2, "_source": {"label": labels[i]}}
            for i in np.argsort(-cosines, kind="stable")[:k]
        ]
        yield {"hits": {"max_score": hits[0]["_score"], "hits": hits}}


def search(vectors, labels, queries, k):
    found = [answer["hits"]["hits"] for answer in answers(vectors, labels, queries, k)]
    scores = [[hit["_score"] for hit in hits] for hits in found]
    return scores, [[hit["_source"]["label"] for hit in hits] for hits in found]


METRIC = "elasticsearch"
if __name__ == "__main__":
    decided(METRIC, search)
