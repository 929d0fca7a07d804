import json
import sys
from fnmatch import fnmatch

import pytest
import torch
import transformers

import surefind as sf
from surefind.data.inputs import Preprocessing
from surefind.learning.methods.dropout import joint_samples, with_dropout
from surefind.models.backbones import (
    FAMILIES,
    image_format,
    load_backbone,
    tower_of,
    with_linear_head,
)
from surefind.models.saving import load_state, load_tensors, save_tensors

VIT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
}
CONVNEXT = {"hidden_sizes": [8, 8, 8, 20], "depths": [1, 1, 1, 1], "num_stages": 4}
CLIP = {**VIT, "projection_dim": 12}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 24], "depths": [1, 1, 1, 1]}
DINO = {k: v for k, v in VIT.items() if k != "intermediate_size"}
TINY = {
    "resnet": ("ResNetModel", RESNET, {"gem": 24, "mean": 24}),
    "convnext": ("ConvNextModel", CONVNEXT, {"gem": 20, "mean": 20}),
    "convnextv2": ("ConvNextV2Model", CONVNEXT, {"gem": 20, "mean": 20}),
    "dinov2": ("Dinov2Model", DINO, {"cls": 16, "mean": 16, "gem": 16}),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        {**DINO, "num_register_tokens": 3},
        {"cls": 16, "mean": 16, "gem": 16},
    ),
    "vit": ("ViTModel", VIT, {"cls": 16, "mean": 16, "gem": 16}),
    "clip_vision_model": (
        "CLIPVisionModelWithProjection",
        CLIP,
        {"projection": 12, "pooler": 16},
    ),
    "siglip_vision_model": ("SiglipVisionModel", VIT, {"pooler": 16, "mean": 16}),
}
CASES = [(kind, pooling) for kind, (_, _, widths) in TINY.items() for pooling in widths]
STATISTICS = {"size": 224, "crop_pct": 0.875, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}


@pytest.fixture(scope="session", autouse=True)
def no_bars():
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def network(name, config):
    kind = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(7)
        return kind(kind.config_class(**config)).eval()


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A folder with a tiny pretrained network of each family."""
    root = tmp_path_factory.mktemp("models")
    for kind, (name, config, _) in TINY.items():
        network(name, config).save_pretrained(root / kind)
        (root / kind / "preprocessor_config.json").write_text(json.dumps(STATISTICS))
    return root


@pytest.fixture
def images(generator):
    return torch.rand(3, 3, 32, 32, generator=generator)


def test_every_family_is_tested():
    assert TINY.keys() == FAMILIES.keys()
    assert all(list(TINY[k][2]) == list(FAMILIES[k].classes) for k in TINY)


@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_features_of_every_family(folders, images, kind, pooling):
    before = torch.get_rng_state()
    tower = load_backbone(folders / kind, pooling=pooling)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(m.training for m in tower.modules())
    features = tower(images)
    assert features.shape == (3, tower.width) == (3, TINY[kind][2][pooling])
    assert features.dtype == torch.float32
    assert torch.isfinite(features).all()
    torch.testing.assert_close(tower(images[:1]), features[:1])
    assert tower.preprocessing == {
        "resize": 256,
        "crop": 224,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "interpolation": "bicubic",
    }


def test_poolings_equal_their_definitions(folders, images):
    with torch.no_grad():
        for kind, (name, _, _) in TINY.items():
            model = getattr(transformers, name).from_pretrained(folders / kind).eval()
            answer = model(pixel_values=images)
            last = answer.last_hidden_state
            if kind == "clip_vision_model":
                expected = {"projection": answer.image_embeds}
                expected["pooler"] = model.vision_model(pixel_values=images).pooler_output
            elif kind == "siglip_vision_model":
                expected = {"pooler": answer.pooler_output, "mean": last.mean(dim=1)}
            elif kind == "vit":
                expected = {"cls": last[:, 0], "mean": last[:, 1:].mean(dim=1)}
            elif kind.startswith("dinov2"):
                skip = 4 if "registers" in kind else 1
                expected = {"cls": answer.pooler_output, "mean": last[:, skip:].mean(dim=1)}
                expected["gem"] = (last[:, skip:].clamp(min=1e-6) ** 3).mean(dim=1) ** (1 / 3)
            else:
                after = model.layernorm if kind.startswith("convnext") else lambda x: x
                expected = {"mean": answer.pooler_output.flatten(1)}
                gem = (last.clamp(min=1e-6) ** 3).mean(dim=(2, 3)) ** (1 / 3)
                expected["gem"] = after(gem)
            for pooling, features in expected.items():
                tower = load_backbone(folders / kind, pooling=pooling)
                torch.testing.assert_close(tower(images), features, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), CASES)
def test_recipe_and_weights_rebuild_it_bit_for_bit(folders, images, tmp_path, kind, pooling):
    tower = load_backbone(folders / kind, pooling=pooling)
    path = tmp_path / "tower.safetensors"
    save_tensors(path, tower.state_dict(), tower.recipe)
    tensors, recipe = load_tensors(path)
    before = torch.get_rng_state()
    again = tower_of(recipe)
    assert torch.equal(torch.get_rng_state(), before)
    load_state(again, tensors)
    assert torch.equal(again(images), tower(images))
    assert again.recipe == tower.recipe


def test_both_towers_in_one_folder_give_the_image_tower(tmp_path, images, capfd):
    text = {k: v for k, v in VIT.items() if not k.endswith("_size") or k == "hidden_size"}
    text |= {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    for name, vision in (("CLIP", CLIP), ("Siglip", VIT)):
        config = getattr(transformers, f"{name}Config")(vision_config=vision, text_config=text)
        config.projection_dim = 12
        with torch.random.fork_rng():
            full = getattr(transformers, f"{name}Model")(config).eval()
        full.save_pretrained(tmp_path / name)
        capfd.readouterr()
        tower = load_backbone(tmp_path / name)
        assert capfd.readouterr() == ("", "")
        expected = full.get_image_features(pixel_values=images).pooler_output
        torch.testing.assert_close(tower(images), expected)
        assert tower.preprocessing is None


def test_a_classifier_gives_its_body(tmp_path, images):
    full = network("ResNetForImageClassification", {**RESNET, "num_labels": 3})
    full.save_pretrained(tmp_path)
    expected = full.resnet(images).pooler_output.flatten(1)
    torch.testing.assert_close(load_backbone(tmp_path, pooling="mean")(images), expected)


def test_dropout_goes_between_a_tower_and_its_head(folders, images, generator):
    encoder = with_linear_head(load_backbone(folders / "dinov2"), generator=generator)
    noisy = with_dropout(encoder)
    assert [type(m).__name__ for m in noisy.backbone] == ["Tower", "Dropout"]
    torch.testing.assert_close(noisy(images), encoder(images))
    samples = joint_samples(noisy, images, [1, 2])
    assert not torch.allclose(samples[0], samples[1])


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """An empty cache and no network; what was tried of it."""
    tried = []

    def refuse(*args, **_):
        tried.append(args)
        raise OSError("unplugged")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tried


@pytest.mark.parametrize("name", ["nobody/no-such-model", "model", "no name"])
def test_a_name_is_not_fetched_unless_allowed(tried, name):
    with pytest.raises(sf.InputError, match=r"is no folder.* or download=True"):
        load_backbone(name)
    assert tried == []


def test_a_folder_and_a_name_in_the_cache_need_no_network(tried, tmp_path, images):
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / ("0" * 40)
    network("ResNetModel", RESNET).save_pretrained(snapshot)
    refs = tmp_path / "hub" / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    assert torch.equal(load_backbone("some/model")(images), load_backbone(snapshot)(images))
    assert tried == []


def test_a_name_that_cannot_be_fetched(tried):
    with pytest.raises(sf.InputError, match="could not be fetched"):
        load_backbone("nobody/no-such-model", download=True)


def test_only_plain_files_are_fetched(monkeypatch, folders, images):
    def fetch(name, allow_patterns):
        assert name == "some/model"
        assert not any(fnmatch(f, p) for f in ("pytorch_model.bin", "x.py") for p in allow_patterns)
        assert any(fnmatch("model-00001-of-00002.safetensors", p) for p in allow_patterns)
        return str(folders / "resnet")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    expected = load_backbone(folders / "resnet")(images)
    assert torch.equal(load_backbone("some/model", download=True)(images), expected)


def test_without_the_library_it_says_what_to_install(monkeypatch, folders):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(sf.InputError, match=r"pip install transformers"):
        load_backbone(folders / "resnet")


WEIGHTS, CONFIG, SIZES = "model.safetensors", "config.json", "preprocessor_config.json"
NO_BACKBONE = [
    ({CONFIG: None, WEIGHTS: None}, "cannot be read"),
    ({WEIGHTS: None}, "cannot be read"),
    ({WEIGHTS: None, "pytorch_model.bin": b""}, "pickles .* are refused"),
    ({CONFIG: b"{"}, "cannot be read"),
    ({CONFIG: b'{"model_type": "gpt2"}'}, "no tower for model_type 'gpt2'; there are resnet, conv"),
    ({CONFIG: {"depths": [2, 1, 1, 1]}}, "lack .* of the network's parameters, such as encoder"),
    ({CONFIG: {"hidden_sizes": [8, 8, 16, 32]}}, "cannot be read"),
    ({WEIGHTS: b"torn"}, "cannot be read .* Copy the folder again"),
    ({SIZES: b"{"}, "preprocessor_config.json in .* cannot be read"),
    ({SIZES: b'{"size": "large"}'}, "preprocessor_config.json in .* cannot be read"),
    ({SIZES: b"[]"}, "preprocessor_config.json in .* cannot be read"),
]


@pytest.mark.parametrize(("changes", "message"), NO_BACKBONE)
def test_folders_that_hold_no_backbone_are_refused(tmp_path, changes, message):
    network("ResNetModel", RESNET).save_pretrained(tmp_path)
    for name, content in changes.items():
        if content is None:
            (tmp_path / name).unlink()
        elif isinstance(content, dict):
            config = json.loads((tmp_path / name).read_text()) | content
            (tmp_path / name).write_text(json.dumps(config))
        else:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(sf.InputError, match=message):
        load_backbone(tmp_path)


def test_what_a_tower_does_not_take_is_refused(folders, tmp_path):
    tower = load_backbone(folders / "clip_vision_model")
    for shape in ((1, 3, 32, 24), (1, 1, 32, 32)):
        with pytest.raises(sf.InputError, match="got"):
            tower(torch.zeros(shape))
    with pytest.raises(sf.InputError) as refused:
        load_backbone(folders / "resnet", pooling="cls")
    assert "pooling" in refused.value.message
    for source in (tmp_path / "none", str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(sf.InputError, match="is no folder"):
            load_backbone(source)


MOMENTS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.1]}


@pytest.mark.parametrize(
    ("config", "resize", "crop"),
    [
        ({"size": 224, "crop_pct": 0.875}, 256, 224),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 256, 224),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, 384, 384),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 256, 224),
        ({"size": 224, "crop_size": 224, "do_center_crop": True}, 224, 224),
        ({"size": 256, "crop_size": 224, "do_center_crop": False}, 256, 256),
        ({"size": {"height": 224, "width": 224}}, 224, 224),
    ],
)
def test_each_way_to_write_sizes(config, resize, crop):
    found = image_format(config | MOMENTS)
    assert (found["resize"], found["crop"]) == (resize, crop)
    assert (found["mean"], found["std"]) == ([0.5, 0.4, 0.3], [0.2, 0.2, 0.1])
    assert image_format({"image_processor": config | MOMENTS}) == found
    assert Preprocessing.from_dict(found).to_dict().items() >= found.items()


@pytest.mark.parametrize(("number", "name"), [(2, "bilinear"), (3, "bicubic"), (None, "bicubic")])
def test_interpolation(number, name):
    config = {"size": 8, "resample": number} | MOMENTS
    assert image_format(config)["interpolation"] == name


def test_no_normalisation_is_mean_zero_and_deviation_one():
    found = image_format({"size": 8, "do_normalize": False} | MOMENTS)
    assert (found["mean"], found["std"]) == ([0, 0, 0], [1, 1, 1])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": 224},
        {"size": 224, "image_mean": [0.5] * 3},
        MOMENTS,
        MOMENTS | {"size": {"height": 224, "width": 192}},
        MOMENTS | {"size": {"longest_edge": 224}},
        MOMENTS | {"size": 224, "crop_size": {"height": 1, "width": 2}},
    ],
)
def test_what_is_not_written_down_is_not_guessed(config):
    assert image_format(config) is None
