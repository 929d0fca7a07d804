"""Pairs of examples: which are positive or negative, what each weighs, and the losses over them."""

from surefind.pairs import losses as objectives

__all__ = ["objectives"]
