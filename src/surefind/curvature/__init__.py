"""Second derivatives of the contrastive loss: per output, per head weight, per parameter."""
