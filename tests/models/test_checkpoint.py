import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import surefind as sf
from surefind import files
from surefind.models.saving import load_state, load_tensors, save_tensors


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


TENSORS = {
    "matrix": torch.arange(6.0).view(2, 3),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
    "special": torch.tensor([float("nan"), float("inf"), -0.0]),
    "flags": torch.tensor([True, False]),
}


def bits(tensor):
    return (
        tensor.dtype,
        tuple(tensor.shape),
        tensor.contiguous().view(-1).view(torch.uint8).tolist(),
    )


@pytest.mark.parametrize("metadata", [{}, {"step": 3, "names": ["a", "ü"], "nested": {"x": None}}])
def test_everything_comes_back_bit_for_bit(path, metadata):
    save_tensors(path, TENSORS, metadata)
    tensors, read = load_tensors(str(path))
    assert read == metadata
    assert tensors.keys() == TENSORS.keys()
    assert all(bits(tensors[k]) == bits(TENSORS[k]) for k in TENSORS)


def test_the_same_content_makes_the_same_file(path):
    written = set()
    for _ in range(8):
        save_tensors(path, TENSORS, {"step": 1})
        written.add(path.read_bytes())
    assert len(written) == 1


def test_loaded_tensors_are_no_windows_into_the_file(path):
    save_tensors(path, {"a": torch.ones(1000)}, {})
    tensors, _ = load_tensors(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert (tensors["a"] == 1).all()


def test_every_truncation_is_refused(path):
    save_tensors(path, {"a": torch.arange(20.0)}, {"step": 1})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(sf.InputError):
            load_tensors(path)


def test_every_flipped_bit_is_refused(path):
    save_tensors(
        path, {"a": torch.arange(5.0), "b": torch.tensor([3])}, {"step": 1, "names": ["ü"]}
    )
    whole = path.read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        with pytest.raises(sf.InputError):
            load_tensors(path)


@pytest.mark.parametrize("content", [None, b"PK\x03\x04 a zip", b"\x80\x02}q\x00.", b"text" * 100])
def test_files_that_others_wrote_are_refused(path, content):
    save_file({"a": torch.ones(2)}, path)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(sf.InputError):
        load_tensors(path)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({}, {"a": object()}),
        ({}, {"a": float("nan")}),
        ({}, {"a": torch.ones(1)}),
        ({"a": torch.ones(2, dtype=torch.complex128)}, {}),
    ],
)
def test_what_cannot_be_written_leaves_nothing(path, tensors, metadata):
    with pytest.raises(sf.InputError):
        save_tensors(path, tensors, metadata)
    assert list(path.parent.iterdir()) == []
    with pytest.raises(sf.InputError):
        load_tensors(path)
    with pytest.raises(sf.InputError):
        save_tensors(path.parent / "new" / "a", {}, {})


@pytest.mark.parametrize("moment", ["models.saving.save_file", "files.flush", "files.os.replace"])
def test_an_error_on_the_way_leaves_the_old_file(path, monkeypatch, moment):
    save_tensors(path, {"a": torch.ones(2)}, {"step": 1})

    def fail(*_, **__):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(f"surefind.{moment}", fail)
        with pytest.raises(OSError, match="disk full"):
            save_tensors(path, {"a": torch.zeros(2)}, {"step": 2})
    tensors, metadata = load_tensors(path)
    assert metadata == {"step": 1}
    assert (tensors["a"] == 1).all()
    assert list(path.parent.iterdir()) == [path]


def test_the_file_is_on_the_disk_before_it_gets_its_name(path, monkeypatch):
    events = []
    flush, replace = files.flush, os.replace
    monkeypatch.setattr(files, "flush", lambda p: (events.append(p.name), flush(p)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    save_tensors(path, {}, {})
    assert events == [".model.safetensors.tmp", "rename", path.parent.name]


def test_states_that_do_not_fit_change_nothing():
    net = nn.Linear(2, 2)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    wrong = {"weight": torch.zeros(2, 3), "other": torch.zeros(1)}
    with pytest.raises(sf.InputError) as caught:
        load_state(net, wrong)
    for part in (
        "3 differences",
        "bias is missing",
        "other is not in the network",
        "weight is (2, 3) float32 where the network has (2, 2) float32",
    ):
        assert part in str(caught.value)
    with pytest.raises(sf.InputError, match=r"bias is \(2,\) float64"):
        load_state(net, {"weight": torch.zeros(2, 2), "bias": torch.zeros(2).double()})
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
