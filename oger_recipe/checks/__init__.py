"""What is said about a run before anything starts."""
