"""What the library says to programmers, said to those who type commands.

The library's errors name what to do in Python. Here, and nowhere else, that becomes what to do at the
command line: a keyword becomes an option, a call becomes a command.
"""

import re

OPTIONS = (
    "batch_size",
    "embedding_dim",
    "examples_per_class",
    "learning_rate",
    "max_wrong",
    "prior_precision",
)
"""Arguments of the library that are options here, and are not words of English."""

SAYINGS = (
    (
        r"Normalise it: torch\.\S+ dim=1\)\. Or pass normalize=True\.",
        "Add --normalize; or --run RUN, if a run embedded the gallery.",
    ),
    (r"Normalise it: torch\.\S+ dim=1\)\.", "Rescale its rows to length 1."),
    (
        r"^(\S+)( is neither a folder nor .*?\.) Pass download=True to fetch it",
        r"\1\2 Fetch it with `hf download \1`",
    ),
    (r"pass the model's name with download=True", "get them with `hf download NAME`"),
    (
        r"no gallery at (.+?); make one with Gallery\(.*\)\.",
        r"no gallery at \1; make one: surefind index SOURCE --out \1.",
    ),
    (
        r"^(.+) holds no gallery yet; make one with Gallery\(.*\)\.",
        r"\1 holds no gallery yet; make one: surefind index SOURCE --out \1.",
    ),
    (
        r"Calibrate again, or search with decide=False, or set on_stale='mark' to get",
        "Calibrate again (surefind calibrate), or search with --stale ignore, or --stale mark to get",
    ),
    (
        r"rank='match' (.*) Add and search with surefind\.Embeddings, or use rank='expected'\.",
        r"--rank match \1 Index and search with --run RUN, or use --rank expected.",
    ),
    (r"Close it there, or open it here with mode='r'\.", "Close it there."),
    (r"To only search, open it with mode='r'\.", "`surefind search` only reads it."),
    (r" \(verify with on_bad=\"skip\"\)", "; commands that take --on-bad skip leave it out"),
    (r", or raise max_pixels if you trust it", ""),
    (r"pass it: load\(path, encoder=\.\.\.\)", "use it from Python: surefind.load"),
    (r"Wrap the network in .* as the backbone\.", "Others can be used from Python."),
    (r"engine='milvus' needs pymilvus", "Milvus needs pymilvus"),
    (r"engine='faiss' needs FAISS", "a gallery needs FAISS"),
    (r" If the gallery does not hold .*, pass self_in_gallery=False\.", ""),
    (
        r"(so it needs \d+ examples to search; got \d+, and \d+ queries\.)",
        r"\1 Give more; of images without a test part, `surefind bench` keeps a third of each class for "
        "the test: 20 in a class are enough.",
    ),
    (r"Cut by=\"class\", or give more images", "Give more images"),
    (r"and give that folder\.", "and give that folder with --data."),
)
"""Patterns of the library's sentences, and what stands for them."""


def for_commands(sentence: str) -> str:
    """Say in terms of commands what the library said in terms of Python."""
    for pattern, saying in SAYINGS:
        sentence = re.sub(pattern, saying, sentence)
    # Followed by these words only: elsewhere it may be a part of a path.
    named = rf"(?<![\w/.-])({'|'.join(OPTIONS)})(?= (?:must|needs|was|is|\d))"
    return re.sub(named, lambda found: f"--{found[1].replace('_', '-')}", sentence)
