"""The process that the user starts: it starts Ray, watches over the run, and says why it ended."""
