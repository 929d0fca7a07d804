"""The gallery in two dimensions, for the page: the first two principal components of a random sample.

With the sample's centre c and the two directions of the largest variance as the rows of A,

    (x, y) = A (v - c)

so that whoever has a query's vector can put it on the map too. Two dimensions show only a share of the
variance, ``explained``: what is apart on the map is apart, what is together may not be.

The map is made when it is first asked for, and again after the gallery has changed.
"""

from weakref import WeakKeyDictionary

import numpy as np
from fastapi import APIRouter, Depends

from surefind.embeddings import kappa_to_json
from surefind.errors import RefusedError
from surefind.gallery.answers import Item
from surefind.gallery.engine import Id
from surefind.service import messages as wire
from surefind.service.problems import described
from surefind.service.settings import allowed
from surefind.service.state import AppState, Catalogue, State

MOST = 3000
"""Items on the map."""

router = APIRouter(
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(401, 403, 408, 409, 422, 429, 503, 504),
)


@router.get("/v1/map")
async def gallery_map(state: State) -> wire.MapView:
    """Project a random sample of the items to two dimensions."""
    return await state.list(lambda: _current(state))


_maps: WeakKeyDictionary[Catalogue, wire.MapView] = WeakKeyDictionary()


def _current(state: AppState) -> wire.MapView:
    listing = state.catalogue()  # another one, once the gallery has changed
    if listing not in _maps:
        _maps[listing] = _projected(state, listing.surest)
    return _maps[listing]


def _projected(state: AppState, ids: list[Id]) -> wire.MapView:
    chosen = np.random.default_rng(0).permutation(len(ids))[:MOST]
    items = [state.gallery.get(ids[i]) for i in sorted(chosen) if ids[i] in state.gallery]
    if not items:
        raise RefusedError(409, "the gallery is empty, so there is no map of it; add items first.")
    vectors = np.stack([item.vector for item in items]).astype(np.float64)
    centre, axes, explained = principal_axes(vectors)
    places = (vectors - centre) @ axes.T
    return wire.MapView(
        total=len(ids),
        points=[_point(state, item, *place) for item, place in zip(items, places, strict=True)],
        centre=centre.tolist(),
        axes=axes.tolist(),
        explained=explained,
    )


def principal_axes(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Find the two directions of the largest variance.

    Args:
        vectors: Rows (n, z), z at least 2.

    Returns:
        The centre (z), the directions (2, z) and the share of the variance along them. Where nothing
        varies, these are the first two coordinates, and they show all there is.
    """
    centre = vectors.mean(axis=0)
    if np.allclose(vectors, centre):
        return centre, np.eye(2, len(centre)), 1.0
    # Importing it takes longer than all else that a service needs to listen, PyTorch apart.
    from sklearn.decomposition import PCA  # type: ignore[import-untyped]

    found = PCA(2, random_state=0).fit(vectors)
    return centre, found.components_, float(found.explained_variance_ratio_.sum())


def _point(state: AppState, item: Item, x: float, y: float) -> wire.MapPoint:
    return wire.MapPoint(
        id=item.id,
        label=item.label,
        kappa=kappa_to_json(item.kappa),
        image=state.thumbnails.has(item.id, item.payload),
        x=float(x),
        y=float(y),
    )
