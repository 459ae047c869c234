"""Shows a run to people: lines on the console, the summary and the curves."""
