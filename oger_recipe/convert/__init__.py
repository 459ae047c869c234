"""Turns another trainer's command line into a recipe file: an engine, and a folder for each dialect."""
