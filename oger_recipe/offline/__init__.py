"""Commands that train nothing: score, judge-eval, eval, prm. Read, ask, make a table, write."""
