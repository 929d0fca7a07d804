"""Pairs of examples: which are positive or negative, what each weighs, and the losses over them."""
