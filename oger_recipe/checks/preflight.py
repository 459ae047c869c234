"""Whether this machine is ready for a run: small checks that the run, its dry run and `oger doctor` share.

A check is a generator of findings; one that does not concern the recipe yields none. A new one is a function in
the module of its subject, and a line in CHECKS.
"""

from collections.abc import Callable
from dataclasses import dataclass

from oger_recipe.base.errors import RecipeError
from oger_recipe.checks import models, packages, resources, services
from oger_recipe.checks.job import PROBLEM, WARNING, Finding, Found, Job


@dataclass(frozen=True)
class Check:
    """``of_recipe``: it needs a recipe; ``slow``: it loads something, and only `oger doctor` takes the time."""

    what: str
    find: Callable[[Job], Found]
    of_recipe: bool = True
    slow: bool = False


CHECKS = (
    Check("packages", packages.packages, of_recipe=False),
    Check("beside torch", packages.beside_torch, of_recipe=False),
    Check("GPUs", resources.gpus, of_recipe=False),
    Check("build", packages.build, of_recipe=False),
    Check("CUDA architectures", packages.architectures, of_recipe=False),
    Check("shared memory", resources.shared_memory, of_recipe=False),
    Check("temporary files", resources.temporary_files, of_recipe=False),
    Check("loopback", resources.loopback, of_recipe=False),
    Check("model files", models.model_files),
    Check("memory", resources.memory),
    Check("supervised stage", resources.supervised),
    Check("run folder", resources.run_folder),
    Check("disks", resources.disks),
    Check("Hugging Face hub", services.on_the_hub),
    Check("embedding server", services.embedding_server),
    Check("judge servers", services.judge_servers),
    Check("judge plugins", models.judge_plugins),
    Check("process reward models", models.step_texts),
    Check("judges' windows", models.windows),
    Check("grader", models.grader),
    Check("encoder", models.encoder, slow=True),
    Check("judges", models.judges),
    Check("verifiers", models.verifiers, slow=True),
    Check("Weights & Biases", services.wandb),
    Check("trackers", services.trackers),
)


def findings(job: Job, *, has_recipe: bool = True, slow: bool = False) -> Found:
    """Yield what the checks find, the slow ones where asked for; without a recipe, the checks of the machine."""
    for check in CHECKS:
        if (has_recipe or not check.of_recipe) and (slow or not check.slow):
            for found in check.find(job):
                yield Finding(found.state, found.text, check.what)


def stop_on_problems(job: Job) -> None:
    """Print warnings. Raise RecipeError with all problems that keep the run from working here."""
    problems = []
    for found in findings(job):
        if found.state == WARNING:
            print(f"warning: {found.what}: {found.text}", flush=True)
        elif found.state == PROBLEM:
            problems.append(f"{found.what}: {found.text}")
    if problems:
        raise RecipeError("\n  - ".join(["this run cannot start here:", *problems]))
