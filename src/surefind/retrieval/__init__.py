"""Finding neighbours, and what their distances alone say about being sure."""
