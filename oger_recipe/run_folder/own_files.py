"""Which files of a run folder a run has written: it removes these and no other.

A run leaves a marker in its folder. Without one nothing there is a run's, whatever its name. With one a file is a
run's by its name, where that is fixed, or because it was noted down, where that depends on the model. A link is never
a run's, and what lies behind it is not looked at.
"""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from oger_recipe.base.files import atomic_write, remove_empty, to_json

MARKER = ".oger-run.json"
PAGE = "report.html"
CURVES = ("solve_rate", "bonus_and_teachers", "policy")  # pictures
TRACKERS = "trackers.json"  # what a resumed run continues at its trackers
MLFLOW = "mlflow.db"
COMMAND = "command.sh"  # the last file that is written before anything starts
RECORDS = (  # lines that say of which step they are
    "metrics.jsonl", "events.jsonl", "history.jsonl", "reward_statistics.jsonl", "source_errors.jsonl",
)  # fmt: skip
_FILES = (
    MARKER, *RECORDS, COMMAND, "recipe.yaml", "environment.json", "reward_errors.jsonl", "summary.json", PAGE,
    TRACKERS, MLFLOW,
)  # fmt: skip
_MODELS = ("model", "model_critic", "supervised_model", "supervised_checkpoints")  # whose files are noted down
_FOLDERS = ("data", "samples", "skipped", "eval", "curves", "logs", "tensorboard", "checkpoints", *_MODELS)


def begin(run_dir: Path) -> None:
    """Mark the folder as a run's, before the run writes anything else; keep the files noted before."""
    _write_marker(run_dir, noted(run_dir))


def note_models(run_dir: Path) -> None:
    """Note in the marker the model files written since it was, however the attempt ended."""
    if not is_marked(run_dir):
        return
    began = (run_dir / MARKER).stat().st_mtime_ns
    written = {name for name in _there(run_dir) if is_of_model(name) and os.lstat(run_dir / name).st_mtime_ns >= began}
    with contextlib.suppress(OSError):  # the disk may be full
        _write_marker(run_dir, noted(run_dir) | written)


def is_marked(run_dir: Path) -> bool:
    return _read_marker(run_dir) is not None


def noted(run_dir: Path) -> set[str]:
    return set(_read_marker(run_dir) or ())


def own(run_dir: Path) -> list[str]:
    """List the run's files by their paths in its folder. Checkpoints have manifests, and are left out."""
    if not is_marked(run_dir):
        return []
    listed = noted(run_dir)
    return [
        name
        for name in _there(run_dir)
        if (_names().fullmatch(name) or name in listed) and not (run_dir / name).is_symlink()
    ]


def in_the_way(run_dir: Path) -> list[str]:
    """List files of others that lie where the run would write."""
    its = set(own(run_dir))
    return [
        name
        for name in _there(run_dir)
        if name not in its and (_names().fullmatch(name) or is_of_model(name) or "/" not in name)
    ]


def remove(run_dir: Path, *, logs: bool) -> list[str]:
    """Remove the run's files but the marker, and folders that are empty then; return what is left in its folders."""
    its = own(run_dir)
    kept = [] if logs else [name for name in its if name.startswith("logs/")]
    for name in its:
        if name != MARKER and name not in kept:
            (run_dir / name).unlink()
    for folder in _FOLDERS:
        remove_empty(run_dir / folder)
    _write_marker(run_dir, noted(run_dir).intersection(_there(run_dir)))
    return [name for name in _there(run_dir) if name != MARKER and name not in kept]


def of_steps_after(run_dir: Path, step: int) -> list[str]:
    """List the samples and evaluations of steps after ``step``."""
    found = ((name, re.fullmatch(_OF_STEPS, name)) for name in _there(run_dir))
    return [name for name, match in found if match and int(match["step"]) > step]


def is_of_earlier_version(run_dir: Path) -> bool:
    """Say whether a run of a version without markers is there."""
    return not is_marked(run_dir) and all((run_dir / name).is_file() for name in (COMMAND, "recipe.yaml", RECORDS[0]))


def is_of_model(name: str) -> bool:
    return name.partition("/")[0] in _MODELS


def _there(run_dir: Path) -> Iterator[str]:
    """Yield the paths of all but folders that lie where a run writes. Links are not followed."""
    for name in _FILES:
        if os.path.lexists(run_dir / name):
            yield name
    for top in _FOLDERS:
        if (run_dir / top).is_symlink():
            if top != "checkpoints":  # checkpoints have manifests, wherever they lie
                yield top
            continue
        if (run_dir / top).is_file():
            yield top
        for folder, folders, files in os.walk(run_dir / top):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            yield from sorted(os.path.relpath(os.path.join(folder, name), run_dir) for name in [*files, *links])


_OF_STEPS = r"(samples/step_|skipped/step_|eval/step_)(?P<step>\d+)\.(jsonl|json|md)"


@functools.cache
def _names() -> re.Pattern[str]:
    """Compile the pattern of names that do not depend on the model."""
    from oger_recipe.run_folder.worker_logs import NAMES

    return re.compile(
        "|".join(
            [
                *map(re.escape, _FILES),
                r"data/(train\.jsonl|teachers\.arrow|eval\.jsonl|counts\.json|supervised\.jsonl)",
                _OF_STEPS,
                rf"curves/({'|'.join(CURVES)})\.png",
                r"logs/stacks-\d{8}-\d{6}\.txt",
                rf"logs/(rank-\d+/)?(driver|error|supervised|({'|'.join(NAMES)})(-\d+)?)\.log",
                r"tensorboard/(.+/)?events\.out\.tfevents\..+",
                r"checkpoints/(best/)?(global_step\d+\.json|_(actor|critic)/(latest|zero_to_fp32\.py))",
            ]
        )
    )


def _read_marker(run_dir: Path) -> list[str] | None:
    path = run_dir / MARKER
    try:
        files = None if path.is_symlink() else json.loads(path.read_text())["oger_run"]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if isinstance(files, list) else None


def _write_marker(run_dir: Path, files: set[str]) -> None:
    with atomic_write(run_dir / MARKER) as partial:
        partial.write_text(to_json({"oger_run": {"files": sorted(files)}}, indent=1) + "\n")
