"""Gaussian posteriors of a linear head, and what they say of an input."""
