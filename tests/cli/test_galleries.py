import numpy as np
import pytest

import surefind as sf
from surefind.apps.cli.items import check_model, existing_gallery, labels_like, new_gallery
from surefind.apps.cli.run_folder import open_run
from surefind.gallery.gallery import Gallery


def unit(n, seed=0, z=4):
    x = np.random.default_rng(seed).normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_labels_follow_a_gallery_of_whole_numbers():
    with Gallery() as gallery:
        gallery.add(unit(2), labels=[None, 3])
        assert labels_like(gallery, ["3", "-7", "x", None]) == [3, -7, "x", None]
    with Gallery() as gallery:
        assert labels_like(gallery, ["3", None]) == ["3", None]


def test_milvus_lite_is_a_gallery_too(surefind):
    np.savez("a.npz", features=unit(3), ids=["a", "b", "c"])
    for added in (3, 0):
        code, out, err = surefind("index", "a.npz", "--out", "g.db")
        assert code == 0, err
        assert f"Added {added} items and updated {3 - added}; g.db holds 3" in out


def test_another_run_is_refused(trained, sure):
    with Gallery(model=open_run(sure).fingerprint) as gallery:
        check_model(gallery, sure)
        check_model(gallery, None)
        with pytest.raises(sf.InputError, match="the gallery was made with another run"):
            check_model(gallery, trained)
    with Gallery() as gallery:
        check_model(gallery, trained)


def test_a_gallery_remembers_the_model_of_the_run_it_is_made_with(sure, tmp_path):
    assert existing_gallery(str(tmp_path / "g"), normalize=False) is None
    with new_gallery(str(tmp_path / "g"), sure, normalize=False) as made:
        made.add(unit(2))
    with existing_gallery(str(tmp_path / "g"), normalize=False) as found:
        assert found.model == open_run(sure).fingerprint
        assert len(found) == 2


def test_a_place_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    for place in ("mine", "mine/letter.txt"):
        with pytest.raises(sf.InputError, match=f"{place} is in use by something else"):
            existing_gallery(str(tmp_path / place), normalize=False)


def test_an_empty_folder_can_become_a_gallery(tmp_path):
    assert existing_gallery(str(tmp_path), normalize=False) is None
