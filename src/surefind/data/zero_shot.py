"""Two ways to divide a fine-grained set: by its publisher's lists, or by class.

Image retrieval on CUB-200-2011 and Cars196 trains on the first half of the classes and tests on the
second (``"zero-shot"``); classification divides the images of every class (``"published"``).
"""

import numpy as np

from surefind.data.dataset import Dataset
from surefind.data.splits import Splits, open_set_split
from surefind.validation import check_choice

PROTOCOLS = ("zero-shot", "published")


def split_by_protocol(dataset: Dataset, in_train: np.ndarray, protocol: str) -> Splits:
    """Divide a set into training and test.

    Args:
        dataset: All of it, with labels in the publisher's order of classes.
        in_train: Whether the publisher lists each example for training (n), boolean.
        protocol: ``"zero-shot"`` or ``"published"``.

    Returns:
        The parts ``"train"`` and ``"test"``.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    if protocol == "zero-shot":
        return open_set_split(dataset)
    return Splits({"train": dataset[in_train], "test": dataset[~in_train]})
