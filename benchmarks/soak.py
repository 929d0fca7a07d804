"""What the service must stand: an hour of mixed load with kills, and ten thousand made-up requests.

Run ``python benchmarks/soak.py``; results are kept in results/soak.json, while it runs too.

    --minutes 60        how long the mixed load lasts
    --requests 10000    how many requests are made up
    --only TEXT         "mixed" or "made-up" alone
    --folder FOLDER     where the gallery is: a file system of at most 256 MB is filled up
                        (``mount -t tmpfs -o size=64m none FOLDER``), on a larger one the limit of file
                        sizes plays a full disk
    --rate 20           requests a second of the mixed load
    --life 45           seconds between two ends of the service, on average

The service is a process of its own, as `surefind serve` starts it. What is sent and what counts as a fault
is in ``tests/service/soaking.py`` and ``tests/service/fuzzing.py``.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from measure import environment
from PIL import Image
from service import resident, server

import surefind as sf
from surefind.data.small_images import load_digits
from surefind.gallery.gallery import Gallery
from surefind.learning.seeds import seeded
from surefind.models.convnets import small_net

RESULTS = Path(__file__).parent / "results" / "soak.json"
TESTS = Path(__file__).parents[1] / "tests" / "service"
SEED, OWN, IMAGES, SHARE = 0, 400, 40, 0.2


def make_world(place: Path) -> list[bytes]:
    """Write a run, and a calibrated gallery that it can embed images for; return some images."""
    from soaking import DIM, LABELS, vector

    digits = load_digits(n_ood=10).train
    encoder = small_net(1, 8, DIM, generator=seeded(SEED, "encoder"))
    sf.MetricLearner(encoder, epochs=1).fit(digits).save(place / "run")

    def drawn(name: str, n: int) -> tuple[np.ndarray, list[str]]:
        vectors = np.array([vector(f"{name}-{i}", 1) for i in range(n)], dtype=np.float32)
        centres = [np.random.default_rng(c).normal(size=DIM) for c in range(len(LABELS))]
        nearest = (vectors @ np.stack(centres).T).argmax(1)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), [
            LABELS[i] for i in nearest
        ]

    with Gallery(path=place / "gallery") as gallery:
        vectors, labels = drawn("own", OWN)
        kappa = np.full(OWN, 400.0)
        gallery.add(
            sf.Embeddings(vectors, kappa), ids=[f"own-{i}" for i in range(OWN)], labels=labels
        )
        asked, truth = drawn("calibration", 600)
        gallery.calibrate(
            sf.Embeddings(asked, np.full(600, 400.0)), truth, max_wrong=0.2, contributions=False
        )
    return [png(np.asarray(image)) for image in np.asarray(digits.inputs)[:IMAGES]]


def png(pixels: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def mixed_load(place: Path, chosen: argparse.Namespace, keep: Any) -> dict[str, Any]:
    import poison
    from soaking import Soak

    images = make_world(place)
    options = ("--model", str(place / "run"), "--review-share", str(SHARE))
    sent = list(poison.REFUSED.values()), poison.BODIES
    soak = Soak(
        place,
        options=options,
        images=images,
        poison=sent,
        rate=chosen.rate,
        life=chosen.life,
        seed=SEED,
        settled=keep,
    )
    own = time.process_time()
    found = soak.run(60 * chosen.minutes)
    return found | {"client_cpu_seconds": round(time.process_time() - own, 1)}


def made_up(place: Path, requests: int) -> dict[str, Any]:
    """Send poison, walk along links, and send made-up requests to every operation for the rest."""
    from fuzzing import follow_links, fuzz, send_poison

    make_world(place)
    options = ("--model", str(place / "run"), "--review-share", str(SHARE))
    with server(place / "gallery", *options) as (address, process):
        poison = send_poison(address, requests // 4)
        linked, followed = follow_links(address, requests // 4)
        made = fuzz(address, requests - sum(poison.values()) - sum(linked.values()))
        peak = resident(process.pid)
    statuses = poison + linked + made
    parts = {"poison": poison, "along links": linked, "by the description": made}
    return {
        "requests": sum(statuses.values()),
        "server_errors": sum(n for status, n in statuses.items() if status >= 500),
        "by_kind": {
            name: {str(k): v for k, v in sorted(part.items())} for name, part in parts.items()
        },
        "succeeded_along_links": dict(sorted(followed.items())),
        "resident_mb": round(peak, 1),
    }


def main(argv: list[str]) -> None:
    sys.path.insert(0, str(TESTS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--life", type=float, default=45)
    chosen = parser.parse_args(argv)
    table: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    table["environment"] = environment()

    def keep(name: str, found: dict[str, Any]) -> None:
        found = found | {"load": round(os.getloadavg()[0], 1)}
        table.setdefault("cases", {})[name] = found
        RESULTS.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
        print(name, json.dumps(found, ensure_ascii=False), flush=True)

    for name in ("mixed load", "made-up requests"):
        if chosen.only not in name:
            continue
        place = Path(tempfile.mkdtemp(prefix="surefind-soak-", dir=chosen.folder))
        try:
            if name == "mixed load":
                found = mixed_load(place, chosen, lambda found: keep("mixed load", found))
            else:
                found = made_up(place, chosen.requests)
            keep(name, found)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1:])
