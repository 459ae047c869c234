"""What a run can be told: every setting, and the recipe file.

Declared: a frozen dataclass for each concern (run, rollouts, grading, rewards, teachers, credit, encoder, loss, task),
all of them in oger.py; fields.py says what a field is; upstream.py has what OpenRLHF's own flags get.
Read and written: parser.py (flags, on top of openrlhf_parser.py), recipe_file.py (YAML), flags.py (settings as a
command line), derived.py (settings that follow from others), shipped.py (the files in configs/), page.py (docs).
"""
