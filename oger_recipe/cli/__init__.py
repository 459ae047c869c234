"""One module per command; thin."""
