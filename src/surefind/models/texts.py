"""Text encoders: BERT towers of `transformers`, and models of sentence-transformers.

A text is a row of token numbers, as the model's own tokenizer gives them, cut or filled up to one length:

    tower.tokens(["where is my card", …])  →  (n, t) float32, -1 where there is no token

Rows are what data sets hold, and what a learner is trained on, embeds and saves the need for; so a
learner of texts is given ``Dataset(tower.tokens(texts), labels)`` and asked
``embed(tower.tokens(texts))``. Numbers up to 16 million are exact in float32, and vocabularies are
smaller. Everything works on rows: frozen features, every method, novelty (which looks at the pooled
vector: those of single tokens would speak of a text's length).

A tower gives vectors that are not normalised: where a model of sentence-transformers ends in a
normalisation, that is left out. A tower of such a model is compared with the model's own `encode` when it
is made, and refused if both differ.

Axes: ``n`` texts, ``t`` tokens, ``d`` features.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surefind.checks import check_choice, check_int
from surefind.errors import InputError
from surefind.models.encoder import on_sphere
from surefind.models.initialization import untouched_rng
from surefind.models.towers import library

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("BertModel", {"add_pooling_layer": False}),
    "roberta": ("RobertaModel", {"add_pooling_layer": False}),
    "xlm-roberta": ("XLMRobertaModel", {"add_pooling_layer": False}),
    "distilbert": ("DistilBertModel", {}),
    "mpnet": ("MPNetModel", {"add_pooling_layer": False}),
}
"""The class in `transformers` and what it is built with, by the ``model_type`` of its configuration."""
POOLINGS = ("mean", "cls")
LENGTH = 128
NOTHING = -1
"""What stands where there is no token."""
PROBES = ("Where is my card?", "a much longer second text, of more words than the first one has")
TOLERANCE = 1e-4


class TextTower(nn.Module):
    """A text encoder: token numbers (n, t) to features (n, d).

    Args:
        model: A text model of `transformers`, or a `SentenceTransformer`.
        tokenizer: Of `transformers`; None for the model's own, or for none.
        pooling: "mean" over the tokens, or "cls", the first one; a `SentenceTransformer` pools by itself.
        length: Tokens of a text; longer texts are cut. None for what a `SentenceTransformer` takes, and for
            128 of another model, or what it has positions for.

    Attributes:
        width: Number of features d.

    Raises:
        InputError: If it is no such model, or gives other vectors so than by itself.
    """

    pretrained = True
    preprocessing = None
    own_stages = ("pooled",)
    """What novelty looks at."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        pooling: str = "mean",
        length: int | None = None,
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        weight = next(model.parameters(), None)
        if weight is not None and weight.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"the text model is in {weight.dtype}, in which token numbers are not exact.",
                field="model",
                hint="Convert it first: model.float().",
            )
        self.sentences = is_sentence_model(model)
        most = _most_tokens(model)
        self.length = min(most, most if self.sentences else LENGTH) if length is None else length
        check_int("length", self.length, least=1)
        if self.length > most:
            raise InputError(
                f"the model takes texts of {most} tokens at most; got length={self.length}.",
                field="length",
            )
        self.model, self.pooling = model, pooling
        self.tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
        self.pooled = nn.Identity()
        self.training = model.training
        if self.sentences:
            # What comes after the last module that computes: `Encoder` normalises after the head.
            self._parts = [m for m in model.children() if type(m).__name__ != "Normalize"]
            self._compare(model)
        else:
            self.width = int(_config(model).hidden_size)

    @property
    def recipe(self) -> dict[str, Any] | None:
        """What `text_tower_of` builds the same network from; None for one of sentence-transformers."""
        if self.sentences:
            return None
        config = _config(self.model)
        plain = config.to_diff_dict() | {"model_type": config.model_type}
        return {"config": plain, "pooling": self.pooling, "length": self.length}

    def tokens(self, texts: Any) -> Tensor:
        """Return the rows of token numbers (n, t) of texts.

        Args:
            texts: A list of strings.

        Returns:
            Float32, -1 where there is no token.

        Raises:
            InputError: If these are no strings, or the tower has no tokenizer.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError("texts must be a list of strings.", field="texts")
        if self.tokenizer is None:
            raise InputError(
                "this tower has no tokenizer: a saved model does not hold one.",
                field="tokenizer",
                hint="Set tower.tokenizer to the model's, of transformers.AutoTokenizer; or use another "
                "tower of the same model for its tokens.",
            )
        if not texts:
            return torch.empty(0, self.length)
        found = self.tokenizer(
            [self._prompted(text) for text in texts],
            padding="max_length",
            truncation=True,
            max_length=self.length,
            return_attention_mask=True,
        )
        ids, mask = torch.tensor(found["input_ids"]), torch.tensor(found["attention_mask"])
        return torch.where(mask > 0, ids, NOTHING).float()

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute features (n, d) of rows of token numbers (n, t)."""
        if tokens.ndim != 2:
            raise InputError(
                f"a text encoder takes rows of token numbers (n, t); got {tuple(tokens.shape)}. Make them "
                "of texts: tower.tokens(texts).",
                field="inputs",
            )
        numbers = tokens.round().long()
        mask = numbers >= 0
        # A row without any token, such as an empty text without marks, has its first place to speak.
        mask = mask | (
            ~mask.any(1, keepdim=True) & (torch.arange(mask.shape[1]) == 0).to(mask.device)
        )
        ids = torch.where(numbers >= 0, numbers, self._padding)
        if self.sentences:
            state = {"input_ids": ids, "attention_mask": mask.long()}
            for part in self._parts:
                state = part(state)
            features = state["sentence_embedding"]
        else:
            hidden = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
            shares = mask.to(hidden.dtype)[..., None]
            mean = (hidden * shares).sum(1) / shares.sum(1)
            features = mean if self.pooling == "mean" else hidden[:, 0]
        pooled: Tensor = self.pooled(features)
        return pooled

    @property
    def _padding(self) -> int:
        of_tokenizer = getattr(self.tokenizer, "pad_token_id", None)
        if of_tokenizer is None and not self.sentences:
            of_tokenizer = getattr(_config(self.model), "pad_token_id", None)
        return int(of_tokenizer or 0)

    def _prompted(self, text: str) -> str:
        name = getattr(self.model, "default_prompt_name", None)
        prompt = "" if name is None else getattr(self.model, "prompts", {}).get(name, "")
        return f"{prompt}{text}"

    @torch.no_grad()
    def _compare(self, model: Any) -> None:
        """Find the width; refuse a model whose own way from texts to vectors is another."""
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            found = self(self.tokens(PROBES))
            wanted = model.encode(list(PROBES), convert_to_tensor=True, show_progress_bar=False).to(
                found
            )
            same = (
                found.shape == wanted.shape
                and float((on_sphere(found) - on_sphere(wanted)).abs().max()) <= TOLERANCE
            )
        except Exception:  # of modules that are no networks of tokens
            same = False
        finally:
            for module, training in modes.items():
                module.training = training
        if not same:
            raise InputError(
                "this SentenceTransformer makes its vectors in another way than from token numbers.",
                field="model",
                hint="Let it: fit surefind.LaplaceHead to model.encode(texts).",
            )
        self.width = int(found.shape[1])


def text_tower_of(recipe: Mapping[str, Any]) -> TextTower:
    """Build a tower from its recipe, in evaluation mode; without weights and tokenizer."""
    config = dict(recipe["config"])
    name, options = FAMILIES[config.pop("model_type")]
    network = getattr(library(), name)
    with untouched_rng():
        model = network(network.config_class(**config), **options).eval()
    return TextTower(model, pooling=recipe["pooling"], length=recipe["length"])


def is_sentence_model(model: Any) -> bool:
    """Return whether something is a model of sentence-transformers, without importing that."""
    return any(kind.__name__ == "SentenceTransformer" for kind in type(model).__mro__)


def is_text_model(model: Any) -> bool:
    """Return whether a `TextTower` can be made of something."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return is_sentence_model(model) or kind in FAMILIES


def _most_tokens(model: Any) -> int:
    """Return how many tokens a text may have."""
    if is_sentence_model(model):
        return int(getattr(model, "max_seq_length", None) or LENGTH)
    config = _config(model)
    # Families after RoBERTa count positions from the number of the padding token on.
    before = 0 if config.model_type in ("bert", "distilbert") else (config.pad_token_id or 0) + 1
    return int(config.max_position_embeddings) - before


def _config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise InputError(
            f"a TextTower is made of a SentenceTransformer, or of a model of transformers of the kinds "
            f"{', '.join(FAMILIES)}; got {type(model).__name__}.",
            field="model",
            hint="Compute its vectors and fit surefind.LaplaceHead to them.",
        )
    return config
