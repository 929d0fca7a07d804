"""Applications around the library: the command line, the service, and the demo."""
