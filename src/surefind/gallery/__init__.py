"""A gallery of embeddings that answers searches, survives a kill, and says when it does not know."""
