"""From a command line of another trainer to a recipe file: an engine, and a folder for each dialect."""
