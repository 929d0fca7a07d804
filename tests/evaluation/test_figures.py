import re
from base64 import b64decode
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from surefind.evaluation.figures import (
    PALETTE,
    curve_chart,
    image_strip,
    kappa_chart,
    loss_chart,
    write_figure,
)


def words(svg):
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def test_colours_are_variables_with_the_light_colour_as_fallback():
    svg = curve_chart("roc", [0, 1], [0, 1])
    assert f"stroke: var(--blue, {PALETTE['blue'][0]})" in svg
    left = set(re.findall(r"(?<!, )#[0-9a-f]{6}(?=[;\"])", svg))
    assert left <= {"#000000"}


def test_a_file_follows_light_and_dark(tmp_path):
    write_figure(tmp_path / "new" / "roc.svg", curve_chart("roc", [0.5], [0.5]))
    text = (tmp_path / "new" / "roc.svg").read_text()
    ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in text
    assert "<dc:date>" not in text


def test_names_are_escaped():
    svg = kappa_chart([0, 1, 2], {"<b>&": [1, 2]}, 'quote " & <b>')
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'quote " & <b>'
    assert "<b>&" in words(svg)


@pytest.mark.parametrize("span", [(0, 2), (0.69, 2.1), (2.9, 3.05), (2.001, 2.002), (-30, 30)])
def test_a_logarithmic_axis_has_few_labels_and_some(span):
    svg = kappa_chart(np.linspace(*span, 11).tolist(), {"a": [1] * 10}, "alt")
    ticks = [w for w in words(svg) if re.fullmatch(r"[\d.e+-]+", w)]
    assert 1 <= len(ticks) <= 12


def test_a_history_of_several_stages_is_one_figure():
    found = words(loss_chart({"encoder": [1.0, 0.5], "variance": [0.3]}))
    assert {"encoder", "variance", "epoch", "mean loss"} <= set(found)
    assert "epoch" in words(loss_chart({}))


def test_images_are_laid_side_by_side():
    assert image_strip(np.zeros((3, 8, 8), np.uint8)).startswith("data:image/png;base64,")
    photographs = image_strip(np.zeros((8, 100, 80, 3), np.uint8))
    assert photographs.startswith("data:image/webp;base64,")
    with Image.open(BytesIO(b64decode(photographs.partition("base64,")[2]))) as shown:
        assert shown.size == (6 * 77 + 5 * 5, 2 * 96 + 5)  # two rows, the second not full
