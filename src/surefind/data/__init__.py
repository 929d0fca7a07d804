"""Data sets: one value for images or features, and loaders for files as their publishers ship them."""
