"""Novelty: whether any layer has seen such an input, as a p-value with a promise."""
