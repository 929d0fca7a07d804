"""Neighbours with a decision: learn from checked queries when to believe the top answer, then say so.

What is learnt is a `surefind.gallery.judgement.Judgement`: a calibration and what it was made for. A search
looks at as many neighbours as the calibration did, whatever k is asked for, so that k decides nothing.
"""

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.decisions.calibration import calibrate
from surefind.errors import Hint, InputError
from surefind.gallery.answers import Answers
from surefind.gallery.engine import Engine, Label, Note
from surefind.gallery.faults import StaleError
from surefind.gallery.finding import Found, find
from surefind.gallery.judgement import Judgement, Settings, signals_of


def learnt(
    engine: Engine,
    queries: Float[np.ndarray, "q z"],
    kappa: Float[np.ndarray, " q"],
    truth: Sequence[Label],
    *,
    model: str | None,
    k: int,
    rank: str,
    seed: int,
    **how: Any,
) -> Judgement:
    """Search with checked queries, and learn when their top answers are right.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        kappa: Their concentrations.
        truth: Their labels; None for a query that has no match.
        model: The name of the model that embedded them.
        k: Neighbours that the signals look at.
        rank: What neighbours are ordered by.
        seed: Splits the queries.
        **how: What else `surefind.decisions.calibrate` takes.

    Returns:
        The calibration with the fingerprints of what it was made for.

    Raises:
        InputError: If a label is not in the gallery.
    """
    missing = set(truth) - engine.labels() - {None}
    if missing:
        raise InputError(
            f"{len(missing)} of the labels are not in the gallery, such as "
            f"{min(missing, key=str)!r}; give None for a query that has no match there."
        )
    found = find(engine, queries, kappa, k, rank)
    top = found.labels[:, 0]
    calibration = calibrate(
        signals_of(rank, kappa, found.scores, found.labels, queries.shape[1]),
        np.array([t is not None and t == x for t, x in zip(truth, top, strict=True)]),
        enrolled=np.array([t is not None for t in truth]),
        rng=np.random.default_rng(seed),
        **how,
    )
    return Judgement(calibration, model, engine.fingerprint(), Settings(k, rank, engine.index))


def is_stale(
    engine: Engine, judgement: Judgement, *, model: str | None, rank: str, policy: str
) -> bool:
    """Tell whether a judgement was made for something else than what is there now.

    Args:
        engine: The records now.
        judgement: What was learnt.
        model: The model's name now.
        rank: What neighbours are ordered by now.
        policy: ``"refuse"`` or ``"mark"``.

    Returns:
        Whether it was; never with ``"refuse"``.

    Raises:
        StaleError: If it was, and that is refused.
    """
    now = Settings(judgement.settings.neighbours, rank, engine.index)
    changes = judgement.changes(model, engine.fingerprint(), now)
    if changes and policy == "refuse":
        raise StaleError(
            f"the calibration does not hold any more: {'; '.join(changes)}.",
            field="calibration",
            hint=Hint(
                "Calibrate again, or search with decide=False, or set on_stale='mark' to get decisions "
                "marked as stale.",
                "Calibrate again (surefind calibrate), or search with --stale ignore, or --stale mark to "
                "get decisions marked as stale.",
                "Calibrate the gallery again.",
            ),
        )
    return bool(changes)


def answers_of(found: Found, k: int, rank: str, **decided: Any) -> Answers:
    """Give the ``k`` best of what was found, with what was decided about them."""
    texts = found.payload[:, :k]
    payload = np.empty(texts.size, dtype=object)
    payload[:] = [None if text is None else json.loads(text) for text in texts.ravel()]
    kept = (found.ids[:, :k], found.labels[:, :k], found.scores[:, :k], found.kappa[:, :k])
    return Answers(*kept, payload.reshape(texts.shape), rank, **decided)


def decided_answers(
    found: Found,
    k: int,
    rank: str,
    judgement: Judgement,
    kappa: Float[np.ndarray, " q"],
    dim: int,
    *,
    groups: Any,
    stale: bool,
) -> Answers:
    """Decide about the top answers.

    Args:
        found: As many neighbours as the judgement looks at, or more, if there are.
        k: How many of them to give.
        rank: What they are ordered by.
        judgement: What was learnt.
        kappa: The queries' concentrations.
        dim: The vectors' dimension.
        groups: The group of each query, if the calibration had groups.
        stale: Whether the judgement was made for something else.

    Returns:
        The answers.
    """
    seen = slice(judgement.settings.neighbours)
    signals = signals_of(rank, kappa, found.scores[:, seen], found.labels[:, seen], dim)
    decisions = judgement.calibration.decide(signals, groups)
    return answers_of(
        found,
        k,
        rank,
        probability=decisions.probability,
        decision=decisions.decision,
        reasons=decisions.reasons,
        stale=stale,
    )


def stored_judgement(note: Note) -> Judgement | None:
    """Read the judgement that a gallery's note holds, if there is one that can be used."""
    stored = note.get("judgement")
    try:
        return None if stored is None else Judgement.from_json(stored)
    except InputError as error:
        # The items are worth more than their calibration, which can be made again.
        warnings.warn(f"searching without decisions: {error}", RuntimeWarning, stacklevel=5)
        return None
