"""`surefind audit`: tables, files, and a page with pictures."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

from surefind.gallery.gallery import Gallery
from surefind.service.images import Thumbnails, small_picture


def people(n=200, count=8, seed=1):
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(16, 16)))[0][:count]
    labels = np.arange(n) % count
    x = centres[labels] + 0.12 * rng.normal(size=(n, 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture
def gallery(surefind):
    """A gallery of 8 people, four of whose 200 pictures have a wrong name; one of these is a copy."""
    x, y = people()
    wrong = y.copy()
    wrong[[10, 51, 92]] = (y[[10, 51, 92]] + 3) % 8
    with Gallery(path="g") as made:
        made.add(x, ids=[f"p{i}" for i in range(200)], labels=[f"[{n}]" for n in wrong])
        made.add(x[:1], ids=["<b>copy</b>"], labels=["[5]"])
    return "g"


def expected(gallery, **options):
    with Gallery.open(gallery, mode="r") as opened:
        return opened.audit(**options)


def test_tables_and_a_summary(surefind, gallery):
    code, out, err = surefind("audit", gallery)
    assert code == 0, err
    found = expected(gallery)
    assert {s.id for s in found.mislabelled[:4]} == {"p10", "p51", "p92", "<b>copy</b>"}
    assert found.summary in out
    assert "Probably mislabelled" in out
    assert "Near-duplicates under different labels" in out
    assert f"[{(10 + 3) % 8}]" in out  # brackets are no markup
    assert out.endswith("Next, with pictures: surefind audit g --out audit.html")


def test_json_has_everything(surefind, gallery):
    code, out, err = surefind("audit", gallery, "--json", "--duplicate", 0.97)
    assert code == 0, err
    read, found = json.loads(out), expected(gallery, duplicate=0.97)
    assert read["findings"] == found.to_rows()
    assert read["summary"] == found.summary
    assert read["wrong_fraction"] == found.wrong_fraction
    assert read["ceiling"] == found.ceiling
    assert (read["items"], read["judged"], read["duplicate"]) == (201, 201, 0.97)
    assert read["impostor_matches"] is None


def test_files_have_all_findings(surefind, gallery, tmp_path):
    rows = expected(gallery, items=150).to_rows()
    for name in ("audit.csv", "deep/audit.json"):
        code, out, err = surefind("audit", gallery, "--out", name, "--items", 150, "--most", 1)
        assert code == 0, err
        assert out.endswith(f"Wrote the audit to {name}.")
    with open("audit.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["sentence"] for row in read] == [row["sentence"] for row in rows]
    assert json.loads((tmp_path / "deep/audit.json").read_text())["findings"] == rows


def test_a_page_without_pictures_shows_ids_and_how_to_mend(surefind, gallery, tmp_path):
    code, _, err = surefind("audit", gallery, "--out", "audit.html")
    assert code == 0, err
    page = (tmp_path / "audit.html").read_text()
    assert "<img" not in page
    assert "<b>copy</b>" not in page  # an id is text, not markup
    assert "&lt;b&gt;copy&lt;/b&gt;" in page
    assert "gallery.update(ids=[&#39;p10&#39;], labels=[&#39;[2]&#39;])" in page
    assert "surefind.Gallery.open(&#39;g&#39;)" in page
    assert not re.search(r"(src|href)=.http", page)
    assert not (tmp_path / "g.service").exists()


def test_what_the_page_says_mends_it(surefind, gallery):
    rows = expected(gallery).to_rows()
    with Gallery.open(gallery) as opened:
        for row in rows:
            if row["kind"] == "mislabelled":
                eval(row["mend"], {"gallery": opened})
        assert opened.get("p10").label == "[2]"
        assert opened.audit().suspects == ()


def test_pictures_come_from_the_folder_of_images_and_from_the_service(
    surefind, sure, pets, tmp_path
):
    assert surefind("index", "pets", "--run", sure, "--out", "g")[0] == 0
    shutil.rmtree(pets / "dog")
    shown = (pets / "cat" / "0.png").read_bytes()
    Thumbnails(tmp_path / "g.service" / "thumbnails", None, 10**6).keep(
        "dog/1.png", small_picture(shown, 10**6)
    )
    code, _, err = surefind("audit", "g", "--out", "audit.html", "--most", 20)
    assert code == 0, err
    page = (tmp_path / "audit.html").read_text()
    pictured = set(
        re.findall(r'<img src="data:image/webp;base64,[^"]+" class="tiny" alt="(.*?)"', page)
    )
    named = set(re.findall(r'<span class="id">(.*?)</span>', page))
    assert {name.replace("&#x2f;", "/") for name in named} == {
        f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(4)
    }
    assert pictured == {*(f"cat/{i}.png" for i in range(4)), "dog/1.png"}
