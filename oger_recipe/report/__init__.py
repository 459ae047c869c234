"""What a person looks at: progress lines, the summary and the curves of a run."""
