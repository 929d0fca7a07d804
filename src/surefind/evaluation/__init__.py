"""Evaluation: what a model is worth on unseen data, benchmarks, and their report."""
