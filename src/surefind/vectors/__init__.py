"""Large sets of vectors that somebody else's model made: reading them in blocks, scanning their pairs."""
