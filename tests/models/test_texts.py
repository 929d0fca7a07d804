"""Text towers: rows of tokens to vectors, as the models themselves compute them."""

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

import surefind as sf
from surefind.errors import InputError
from surefind.models.backbones import load_backbone, with_linear_head
from surefind.models.texts import FAMILIES, TextTower

WORDS = [
    "where",
    "is",
    "my",
    "card",
    "lost",
    "stolen",
    "new",
    "pin",
    "change",
    "the",
    "a",
    "of",
    "how",
    "to",
    "?",
    "weather",
    "today",
]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
TINY = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "hidden_dropout_prob": 0.0,
}
TEXTS = ["where is my card", "lost card", "how to change the pin of a new card ?", "weather"]


def words():
    made = Tokenizer(WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def network(kind="bert"):
    name, options = FAMILIES[kind]
    model = getattr(transformers, name)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(7)
        config = dict(TINY)
        if kind == "distilbert":
            config |= {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}
        return model(model.config_class(**config), **options).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved BERT with its tokenizer."""
    place = tmp_path_factory.mktemp("bert")
    network().save_pretrained(place)
    words().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def sentences(folder):
    """A model of sentence-transformers on it, which normalises."""
    transformer = modules.Transformer(str(folder), max_seq_length=24)
    return SentenceTransformer(
        modules=[transformer, modules.Pooling(16, pooling_mode="mean"), modules.Normalize()],
        device="cpu",
    )


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_tower_pools_what_the_network_gives(kind):
    model, tokenizer = network(kind), words()
    tower = TextTower(model, tokenizer, length=12)
    rows = tower.tokens(TEXTS)
    assert rows.shape == (4, 12)
    with torch.no_grad():
        found = tower(rows)
        first = TextTower(model, tokenizer, pooling="cls", length=12)(rows)
        for i, text in enumerate(TEXTS):  # one by one, so that nothing is filled up
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            hidden = model(input_ids=ids).last_hidden_state[0]
            torch.testing.assert_close(found[i], hidden.mean(0), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(first[i], hidden[0], atol=1e-5, rtol=1e-4)


def test_a_folder_is_read_with_its_tokenizer(folder):
    tower = load_backbone(folder)
    assert isinstance(tower, TextTower)
    assert torch.equal(tower.tokens(["my card"])[0, :5], torch.tensor([2.0, 6.0, 7.0, 3.0, -1.0]))
    assert tower.tokens([]).shape == (0, tower.length)
    with pytest.raises(InputError):
        load_backbone(folder, pooling="gem")


def test_a_sentence_model_gives_its_vectors_before_they_are_normalised(sentences):
    tower = TextTower(sentences, length=24)
    with torch.no_grad():
        found = tower(tower.tokens(TEXTS))
    assert tower.width == 16
    assert float((found.norm(dim=1) - 1).abs().max()) > 0.01
    wanted = torch.as_tensor(sentences.encode(TEXTS, show_progress_bar=False))
    torch.testing.assert_close(
        found / found.norm(dim=1, keepdim=True), wanted, atol=1e-5, rtol=1e-4
    )


def data(tower, n=40):
    generator = torch.Generator().manual_seed(0)
    rows = [
        " ".join(WORDS[int(i)] for i in torch.randint(6 * c, 6 * c + 6, (4,), generator=generator))
        for c in (0, 1)
        for _ in range(n // 2)
    ]
    return sf.Dataset(tower.tokens(rows), torch.arange(n) // (n // 2))


def test_a_learner_on_a_frozen_text_tower(folder, tmp_path):
    tower = load_backbone(folder)
    encoder = with_linear_head(tower, generator=torch.Generator().manual_seed(0))
    how = {"freeze_backbone": sf.Freezing(head="identity"), "method": "laplace-posthoc"}
    learner = sf.MetricLearner(encoder, epochs=0, **how).fit(data(tower))
    found = learner.embed(tower.tokens(TEXTS))
    assert bool(torch.isfinite(found.kappa).all())
    assert found.novelty is not None
    assert learner.novelty_.stages == ("pooled",)
    learner.save(tmp_path)
    again = sf.load(tmp_path)
    assert torch.equal(again.embed(tower.tokens(TEXTS)).kappa, found.kappa)
    with pytest.raises(InputError) as refusal:
        again.encoder.backbone.tokens(TEXTS)
    assert refusal.value.field == "tokenizer"


def test_a_learner_on_a_sentence_model(sentences, tmp_path):
    tower = TextTower(sentences, length=24)
    encoder = with_linear_head(tower, generator=torch.Generator().manual_seed(0))
    how = {"freeze_backbone": sf.Freezing(head="identity"), "method": "laplace-posthoc"}
    learner = sf.MetricLearner(encoder, epochs=0, novelty=None, **how).fit(data(tower))
    learner.save(tmp_path)
    again = sf.load(tmp_path, encoder=with_linear_head(tower, generator=torch.Generator()))
    rows = tower.tokens(TEXTS)
    assert torch.equal(again.embed(rows).kappa, learner.embed(rows).kappa)


@pytest.mark.slow
def test_a_text_tower_can_be_trained(folder):
    tower = load_backbone(folder)
    encoder = with_linear_head(tower, 4, generator=torch.Generator().manual_seed(0))
    training = data(tower)
    learner = sf.MetricLearner(encoder, method="laplace-posthoc", epochs=1, batch_size=8).fit(
        training
    )
    assert bool(torch.isfinite(learner.embed(training).kappa).all())


class Words(torch.nn.Module):
    """Not a network of tokens."""

    def forward(self, features):
        return features


def test_what_is_no_text_model_is_refused(folder, sentences):
    tower = load_backbone(folder)
    for model in (torch.nn.Linear(2, 2), SentenceTransformer(modules=[Words()], device="cpu")):
        with pytest.raises(InputError) as refusal:
            TextTower(model)
        assert refusal.value.field == "model"
    with pytest.raises(InputError) as refusal:
        TextTower(network().half())
    assert refusal.value.field == "model"
    with pytest.raises(InputError) as refusal:
        tower(torch.zeros(2, 3, 8, 8))
    assert refusal.value.field == "inputs"
    with pytest.raises(InputError) as refusal:
        TextTower(network(), words(), length=41)
    assert refusal.value.field == "length"
    for texts in ("one string", [1, 2]):
        with pytest.raises(InputError) as refusal:
            tower.tokens(texts)
        assert refusal.value.field == "texts"
    with pytest.raises(InputError) as refusal:
        sf.MetricLearner(sentences, epochs=0).fit(data(tower))
    assert refusal.value.field == "encoder"
