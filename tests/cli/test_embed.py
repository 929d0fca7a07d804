import numpy as np
from PIL import Image
from stored import npz

import surefind as sf
from surefind.data.sources import load_digits


def test_npz_holds_what_the_library_gives(surefind, sure):
    code, out, err = surefind("embed", sure, "digits:test", "--out", "deep/test.npz")
    assert code == 0, err
    assert "Wrote 599 embeddings of" in out
    stored = npz("deep/test.npz")
    test = load_digits().test
    expected = sf.load(sure).embed(test).numpy()
    np.testing.assert_allclose(stored["mean"], expected.mean, atol=1e-6)
    np.testing.assert_allclose(stored["kappa"], expected.kappa, rtol=1e-4)
    np.testing.assert_allclose(stored["uncertainty"], 1 / stored["kappa"])
    assert stored["ids"].tolist() == [str(i) for i in range(599)]
    assert stored["labels"].tolist() == [str(int(y)) for y in test.labels]


def test_a_folder_of_loose_images_is_read_as_the_network_takes_them(surefind, sure, tmp_path):
    """The network takes grey images of 8 pixels; these files are coloured."""
    (tmp_path / "loose").mkdir()
    for i in range(3):
        pixels = np.full((8, 8, 3), 40 * i, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "loose" / f"{i}.png")
    code, _, err = surefind("embed", sure, "loose", "--out", "loose.npz")
    assert code == 0, err
    assert npz("loose.npz")["ids"].tolist() == ["0.png", "1.png", "2.png"]


def test_a_write_that_fails_leaves_nothing_half(surefind, sure, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "a.npz")

    monkeypatch.setattr("numpy.savez", full)
    code, _, err = surefind("embed", sure, "digits:test", "--out", "a.npz")
    assert code == 1
    assert "No space left on device" in err
    assert not list(tmp_path.iterdir())
