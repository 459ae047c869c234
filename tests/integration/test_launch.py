"""What a run's driver shows while OpenRLHF works in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oger_recipe.pipeline.driver.launch import _driver_output


@pytest.mark.parametrize("verbose", [False, True])
def test_what_the_driver_and_its_children_print_goes_to_the_log_unless_asked_for(
    verbose, capfd, tmp_path: Path
) -> None:
    log = tmp_path / "driver.log"
    log.touch()
    with _driver_output(log, verbose):
        print("a page", flush=True)
        print("a warning", file=sys.stderr, flush=True)
        os.system("echo linker error >&2")
    os.system("echo afterwards >&2")
    shown = capfd.readouterr()
    kept = log.read_text()
    for text in ("a page", "a warning", "linker error"):
        assert (text in shown.out + shown.err) is verbose
        assert (text in kept) is not verbose
    assert "afterwards" in shown.err
