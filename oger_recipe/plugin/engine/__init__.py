"""The processes that sample: vLLM and the grading of what it samples."""
