"""Which label a vector has: one model, fitted in closed form, and what it says of its own items."""
