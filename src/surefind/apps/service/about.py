"""What a service says about itself: its gallery, its calibration, its health and its figures."""

import dataclasses
from importlib.metadata import version

from fastapi import APIRouter, Depends, Response

from surefind.apps.service.messages import CalibrationView, Curve, GalleryView, Health
from surefind.apps.service.problems import described
from surefind.apps.service.settings import WRITE, Allowed, allowed
from surefind.apps.service.state import AtDesk

router = APIRouter(tags=["about"], responses=described(401, 403, 422, 429, 504))


@router.get("/healthz", responses=described(503))
async def healthz(desk: AtDesk) -> Health:
    """Say that the service is up; no token is needed."""
    return Health(status="ok", items=await desk.work(lambda: len(desk.gallery)))


@router.get("/metrics", response_class=Response, dependencies=[Depends(allowed)])
async def metrics(desk: AtDesk) -> Response:
    """Give the figures for Prometheus."""
    text, kind = await desk.work(desk.metrics.text)
    return Response(text, headers={"Content-Type": kind})


@router.get("/v1/gallery", dependencies=[Depends(allowed)])
async def gallery(desk: AtDesk, found: Allowed) -> GalleryView:
    """Say what can be searched, and how."""
    return GalleryView(
        items=await desk.work(lambda: len(desk.gallery)),
        dim=desk.gallery.dim,
        model=desk.gallery.model,
        images=desk.embeds,
        calibrated=desk.gallery.calibration is not None,
        may_write=found == WRITE,
        version=version("surefind"),
    )


@router.get("/v1/calibration", dependencies=[Depends(allowed)])
async def calibration(desk: AtDesk) -> CalibrationView:
    """Say what the decisions rest on: the risk-coverage curve, the spread of κ, and a summary."""
    made = desk.gallery.calibration
    if made is None:
        return CalibrationView(calibrated=False)
    curve, added = made.risk_curve, made.contributions
    return CalibrationView(
        calibrated=True,
        summary=made.summary,
        max_wrong=made.max_wrong,
        confidence=made.confidence,
        threshold=made.threshold,
        floor=made.floor,
        queries=made.queries,
        unknown=made.unknown,
        log_kappa_quantiles=list(made.log_kappa_quantiles),
        risk_curve=Curve(
            thresholds=list(curve.thresholds),
            coverage=list(curve.coverage),
            wrong_rate=list(curve.wrong_rate),
            upper_bound=list(curve.upper_bound),
            chosen=curve.chosen,
        ),
        contributions=None
        if added is None
        else [dataclasses.asdict(signal) for signal in added.signals],
    )
