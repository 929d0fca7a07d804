"""Networks that turn inputs into unit embeddings, and how they are built, pooled and kept."""
