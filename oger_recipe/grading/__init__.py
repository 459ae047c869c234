"""Grading in processes that can be killed."""
