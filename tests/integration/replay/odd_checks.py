"""Checks that end in the ways that checks can end; a process of their own imports them."""

import os
import time

from oger_recipe.checks.gpu_here import Here, Numbers, Skipped


def fine(here: Here) -> Numbers:
    return {"process": os.getpid()}


def dies(here: Here) -> Numbers:
    os._exit(3)


def hangs(here: Here) -> Numbers:
    time.sleep(10_000)
    return {}


def raises(here: Here) -> Numbers:
    print("for the log")
    raise ValueError(f"nothing in {here.folder}/a.txt")


def skips(here: Here) -> Numbers:
    raise Skipped("no reason")
