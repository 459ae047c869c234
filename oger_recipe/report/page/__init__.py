"""The page of one or several runs: one HTML file with everything in it."""
