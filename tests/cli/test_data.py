from dataclasses import replace

from surefind.data import catalogue


def test_data_check_says_what_is_there_and_what_is_wrong(surefind, tmp_path):
    code, out, _ = surefind("data", "check", "digits")
    assert code == 0
    assert "Everything is as published" in out
    code, _, err = surefind("data", "check", "mnist", "--data", tmp_path)
    assert code == 1
    assert "MNIST is not in" in err
    code, _, err = surefind("data", "check", "imagenet")
    assert code == 1
    assert "name must be one of" in err
    code, out, _ = surefind("data", "list")
    assert code == 0
    assert "fashion-mnist" in out


def test_a_set_that_is_not_as_published_fails(surefind, monkeypatch):
    other = replace(catalogue.ENTRIES["digits"], counts={"train": 7})
    monkeypatch.setattr(catalogue, "ENTRIES", {"digits": other})
    code, out, _ = surefind("data", "check", "digits")
    assert code == 1
    assert "part 'train' has 1198 examples where 7 are published" in out


def test_the_folder_of_data_can_be_set_once(surefind, monkeypatch, tmp_path):
    monkeypatch.setenv("SUREFIND_DATA", str(tmp_path))
    _, _, err = surefind("data", "check", "mnist")
    assert f"MNIST is not in {tmp_path}" in err
