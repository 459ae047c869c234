"""Ready-made plugins; files with a _ are parts of them, and of sources."""
