"""``python -m surefind`` is the command line."""

from surefind.cli import main

main()
