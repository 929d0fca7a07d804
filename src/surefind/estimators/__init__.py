"""Estimators: a learner around any encoder, and a Laplace head on frozen embeddings."""
