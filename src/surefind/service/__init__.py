"""A gallery behind an HTTP door, and a page on which people see how sure its answers are."""
