"""Benchmarks, metrics on 0/1 scores, and the tables of an evaluation."""
