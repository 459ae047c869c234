"""What a run can be told: every setting, and the recipe file.

Declared: a frozen dataclass for each concern (run, rollouts, steps, grading, rewards, teachers, credit, encoder, loss,
critic, task), all of them in oger.py; fields.py says what a field is, upstream.py declares OpenRLHF's own flags.
Read and written: parser.py (flags, on top of openrlhf_parser.py), recipe_file.py (YAML), flags.py (settings as a
command line), derived.py (settings that follow from others), shipped.py (the files in configs/), page.py (docs).
What is said of settings before anything starts is in checks/: settings.py (the whole recipe, with each number),
combinations.py, notes.py (what has no effect, or is easily not meant).
"""
