"""The demo: what κ is for, told as a short story, with a page to look at."""

from surefind.apps.demo.page import write_page
from surefind.apps.demo.story import Story, tell

__all__ = ["Story", "tell", "write_page"]
