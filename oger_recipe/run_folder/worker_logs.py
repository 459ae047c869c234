"""The logs of a run's workers, by what the workers are."""

from collections import Counter
from pathlib import Path

from oger_recipe.base.secrets import redactor

JUDGE = "judge"
ROLES = {
    "OgerPPOTrainer": "controller",
    "OgerPolicyModelActor": "policy",
    "OgerCriticModelActor": "critic",
    "OgerRolloutActor": "engine",
    "ReferenceModelActor": "reference",
    "OgerReferenceModelActor": "reference",
    "RewardModelActor": "reward-model",
    "OgerRewardModelActor": "reward-model",
    "JudgeActor": JUDGE,
    "EncoderActor": "encoder",
}
_ALONE = ("controller", JUDGE)  # without a number: there is one, or every start makes another
_ACTOR = ":actor_name:"  # Ray's line in a worker's log that says which actor it has become
_RAYS_OWN = {"raylet": ("raylet.out", "raylet.err"), "gcs": ("gcs_server.out", "gcs_server.err")}
NAMES = (*dict.fromkeys(ROLES.values()), *_RAYS_OWN)  # of the logs, but for the numbers of workers


def workers(session_logs: Path, job: str = "*") -> dict[int, str]:
    """Return the name of each worker's log by its process id: controller, policy-0, policy-1, engine-0 ..., judge

    ``job``: in a cluster that the run joined, other jobs' workers have logs there as well.
    """
    names, seen = {}, Counter[str]()
    logs = {int(path.stem.rpartition("-")[2]): path for path in session_logs.glob(f"worker-*-{job}-*.out")}
    for pid in sorted(logs):  # in the order of their ranks, which they were started in
        role = _role(logs[pid])
        if role is None:
            continue
        names[pid] = role if role in _ALONE else f"{role}-{seen[role]}"
        seen[role] += 1
    return names


def outputs(session_logs: Path, pid: int, job: str = "*") -> list[Path]:
    """Return the files with a worker's output, and then those with its errors."""
    return [path for kind in ("out", "err") for path in session_logs.glob(f"worker-*-{job}-{pid}.{kind}")]


def _role(log: Path) -> str | None:
    with log.open(errors="replace") as lines:
        for line, _ in zip(lines, range(1000), strict=False):
            if line.startswith(_ACTOR):
                return ROLES.get(line.removeprefix(_ACTOR).split("(")[0].strip())
    return None


def keep(session_logs: Path, target: Path, job: str = "*") -> None:
    """Append each worker's output, and then its errors, to ``<name>.log``; a run that is continued goes on there.

    Ray's own logs are there even where nothing was written: the sentence on a part of Ray that died names them.
    """
    of_workers: dict[str, list[Path]] = {}
    for pid, name in workers(session_logs, job).items():
        of_workers.setdefault(name, []).extend(outputs(session_logs, pid, job))
    of_ray = {name: [session_logs / file for file in files] for name, files in _RAYS_OWN.items()} if job == "*" else {}
    for name, paths in (of_workers | of_ray).items():
        for path in paths:
            written = path.exists() and path.stat().st_size
            if written or name in of_ray:
                with (target / f"{name}.log").open("a", errors="replace") as log:
                    log.write(f"== {path.name}{'' if written else ' (empty)'}\n")
                    if written:
                        with path.open(errors="replace") as source:
                            log.writelines(map(redactor(), source))
