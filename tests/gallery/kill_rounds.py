"""Rounds of random changes, each ended by SIGKILL at a random moment, checked against a plain dict.

``python kill_rounds.py ROUNDS SEED [FOLDER]`` writes a JSON summary, or fails. A child changes the
gallery and says so after every call that returned. Whatever it said must be there when the gallery is
opened again; beyond that at most the one change that was under way, whole. The write-ahead log is folded
into the database often, and the database compacted, so that kills hit that too.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from surefind.embeddings import Embeddings
from surefind.gallery import store
from surefind.gallery.gallery import Gallery

DIM = 8
store.CHECKPOINT = 5  # pages
COMPACT = 7
"""Changes after which the folder is compacted."""


def vectors(rng, n):
    x = rng.normal(size=(n, DIM))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def changes(state, rng):
    """Yield endless changes that are possible, given what the dict holds when each is drawn."""
    number = 0
    while True:
        number += 1
        kind = rng.choice(["add", "update", "delete"], p=[0.5, 0.25, 0.25])
        count = int(rng.integers(1, 6))
        if kind == "add" or len(state) < 10:
            ids = [f"{rng.integers(2**40)}-{number}-{n}" for n in range(count)]
            kind = "add"
        else:
            ids = [str(i) for i in rng.choice(sorted(state), size=count, replace=False)]
        label, payload = int(rng.integers(100)), {"n": number}
        yield kind, ids, vectors(rng, count), rng.uniform(1, 9, count), label, payload


def apply_to_dict(state, change):
    kind, ids, x, kappa, label, payload = change
    for n, i in enumerate(ids):
        if kind == "delete":
            del state[i]
        else:
            unit = (x[n] / np.linalg.norm(x[n])).astype(np.float32)
            state[i] = (unit.tolist(), float(kappa[n]), label, payload)


def apply_to_gallery(gallery, change):
    kind, ids, x, kappa, label, payload = change
    if kind == "delete":
        gallery.delete(ids)
    else:
        method = gallery.add if kind == "add" else gallery.update
        n = len(ids)
        method(Embeddings(x, kappa), ids=ids, labels=[label] * n, payload=[payload] * n)


def content(gallery):
    items = (gallery.get(i) for i in gallery)
    return {i.id: (i.vector.tolist(), i.kappa, i.label, i.payload) for i in items}


def same(a, b):
    return a.keys() == b.keys() and all(
        np.allclose(a[i][0], b[i][0], atol=1e-6) and a[i][1:] == b[i][1:] for i in a
    )


def child(path, state, seed, out):
    gallery = Gallery.open(path)
    for number, change in enumerate(changes(state, np.random.default_rng(seed)), 1):
        apply_to_gallery(gallery, change)
        apply_to_dict(state, change)
        os.write(out, b".")
        if number % COMPACT == 0:
            gallery.save()


def wait(read, count):
    """Wait until that many changes were acknowledged."""
    seen = 0
    while seen < count:
        news = os.read(read, 1)
        assert news, "the child failed by itself"
        seen += 1
    return seen


def run(rounds, seed, folder=None):
    rng = np.random.default_rng(seed)
    said = under_way = compacted = 0
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "gallery"
        Gallery(path=path).close()
        state = {}
        for _ in range(rounds):
            own = int(rng.integers(2**40))
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                try:
                    child(path, dict(state), own, write)
                finally:
                    os._exit(1)
            os.close(write)
            acknowledged = wait(read, int(rng.integers(0, 20)))
            time.sleep(rng.exponential(0.005))
            os.kill(pid, signal.SIGKILL)
            acknowledged += len(os.read(read, 2**16))
            os.close(read)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), "the child failed by itself"
            coming = changes(state, np.random.default_rng(own))
            for _ in range(acknowledged):
                apply_to_dict(state, next(coming))
            with Gallery.open(path) as gallery:
                found, told = content(gallery), gallery.info["fingerprint"]
            if not same(found, state):
                apply_to_dict(state, next(coming))
                under_way += 1
            assert same(found, state), f"lost something after {said + acknowledged} changes"
            with Gallery.open(path, mode="r") as again:
                assert again.info["fingerprint"] == told
            said += acknowledged
            compacted += acknowledged // COMPACT
    return {
        "rounds": rounds,
        "acknowledged": said,
        "lost": 0,
        "kept_though_under_way": under_way,
        "compacted": compacted,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])) + "\n")
