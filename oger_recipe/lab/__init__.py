"""The built-in task, which needs no download: problems, teachers, tiny models, judges with known answers; studies."""
