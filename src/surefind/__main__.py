"""``python -m surefind`` is the command line."""

from surefind.apps.cli import main

main()
