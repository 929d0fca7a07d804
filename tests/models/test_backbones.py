import json
import sys
from fnmatch import fnmatch

import pytest
import torch
import transformers

import surefind as sf
from surefind.models.backbones import FAMILIES, load_backbone, tower_of, with_linear_head
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
    "clip_vision_model": ("CLIPVisionModelWithProjection", CLIP, {"projection": 12, "pooler": 16}),
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


def test_half_precision_weights_are_read_as_float32(tmp_path):
    network("ResNetModel", RESNET).half().save_pretrained(tmp_path)
    assert {p.dtype for p in load_backbone(tmp_path).parameters()} == {torch.float32}


def test_awkward_image_sizes(folders, generator):
    for kind in ("resnet", "convnext", "dinov2"):
        tower = load_backbone(folders / kind)
        features = tower(torch.rand(1, 3, 40, 57, generator=generator))
        assert features.shape == (1, tower.width)


def test_images_that_do_not_fit_are_refused(folders):
    tower = load_backbone(folders / "clip_vision_model")
    with pytest.raises(sf.InputError, match="takes images of 32 × 32 pixels; got 32 × 24"):
        tower(torch.zeros(1, 3, 32, 24))
    with pytest.raises(sf.InputError, match=r"images must be \(n, 3, height, width\); got \(1, 1,"):
        tower(torch.zeros(1, 1, 32, 32))


def test_a_head_on_a_tower(folders, images, generator):
    tower = load_backbone(folders / "dinov2")
    encoder = with_linear_head(tower, generator=generator)
    assert encoder.features(images).shape == (3, 17)
    assert encoder(images).shape == (3, 16)
    assert not encoder.training
    assert with_linear_head(tower, 5, generator=generator).embedding_dim == 5


def test_the_logging_of_the_library_is_given_back(folders):
    log = transformers.utils.logging
    for verbosity, bars in ((log.INFO, True), (log.ERROR, False)):
        log.set_verbosity(verbosity)
        (log.enable_progress_bar if bars else log.disable_progress_bar)()
        load_backbone(folders / "resnet")
        assert (log.get_verbosity(), log.is_progress_bar_enabled()) == (verbosity, bars)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "cannot be read"),
        ({"config.json": "{}"}, "cannot be read"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, "pickles .* are refused"),
        ({"config.json": "{", "model.safetensors": ""}, "cannot be read"),
        ({"config.json": '{"model_type": "nil"}', "model.safetensors": ""}, "cannot be read"),
        (
            {"config.json": '{"model_type": "gpt2"}', "model.safetensors": ""},
            "no tower for model_type 'gpt2'; there are resnet, convnext",
        ),
    ],
)
def test_folders_that_hold_no_backbone_are_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(sf.InputError, match=message):
        load_backbone(tmp_path)


@pytest.fixture
def copied(tmp_path):
    network("ResNetModel", RESNET).save_pretrained(tmp_path)
    return tmp_path


def test_damaged_weights_are_refused(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(sf.InputError, match=r"cannot be read .* Copy the folder again"):
        load_backbone(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depths": [2, 1, 1, 1]}, "lack .* of the network's parameters, such as encoder"),
        ({"hidden_sizes": [8, 8, 16, 32]}, "cannot be read"),
    ],
)
def test_weights_of_another_network_are_refused(copied, change, message):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(sf.InputError, match=message):
        load_backbone(copied)


@pytest.mark.parametrize("text", ["{", '{"size": "large"}', "[]"])
def test_damaged_preprocessing_is_refused(copied, text):
    (copied / "preprocessor_config.json").write_text(text)
    with pytest.raises(sf.InputError, match=r"preprocessor_config.json in .* cannot be read"):
        load_backbone(copied)


def test_poolings_of_other_families_are_refused(folders):
    with pytest.raises(sf.InputError, match="pooling of resnet must be one of 'gem', 'mean'; got"):
        load_backbone(folders / "resnet", pooling="cls")


def test_a_missing_folder_is_no_name(tmp_path):
    for source in (tmp_path / "none", str(tmp_path / "none"), "./none", "a/b/c"):
        with pytest.raises(sf.InputError, match="is no folder"):
            load_backbone(source)


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
