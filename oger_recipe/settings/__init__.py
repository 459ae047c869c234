"""What a run can be told, and what is said about it before anything starts.

Declared: a frozen dataclass for each concern (run, rollouts, grading, rewards, teachers, credit, encoder, loss, task),
all of them in oger.py; fields.py and ranges.py say what a field is; upstream.py has what OpenRLHF's own flags get.
Read and written: parser.py (flags, on top of openrlhf_parser.py), recipe_file.py (YAML), flags.py (settings as a
command line), derived.py (settings that follow from others), shipped.py (the files in configs/), page.py (docs).
Checked: values.py (each number), combinations.py, checks.py (the whole recipe), machine.py; effects.py and notes.py
remark on what works and is easily not meant.
"""
