"""The method as pure tensor functions: torch in, torch out; no files, no processes, no configuration objects."""
