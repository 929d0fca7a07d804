"""Evaluation: metrics on unseen data, benchmarks and their report."""
