"""Training an encoder: the loop, resumable sessions, several processes, and seven methods."""
