"""Which machine a run is meant for, this one or the Ray cluster that it joins, and whether that has GPUs."""

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

# Share of each GPU, as Ray counts, where all roles share them; OpenRLHF's own four take 0.2 each.
JUDGES_SHARE = ENCODER_SHARE = 0.1

_LIMIT_S = 60.0  # for a cluster's answer; Ray itself tries for minutes
_CONNECT_S = 5.0
_TYPE = "accelerator_type:"  # Ray finds it beside real GPUs alone, however many a node was told to have


class Machine(NamedTuple):
    """cpu: runs there have no CUDA; gpus: how many Ray has, None where nobody knows, or where a run on CPUs tells Ray;
    cluster: the address of the one that is joined; types: of its GPUs; silent: why it could not be asked, so that the
    rest is of this machine."""

    cpu: bool
    gpus: int | None
    cluster: str | None = None
    types: tuple[str, ...] = ()
    silent: str | None = None

    def __str__(self) -> str:
        """Say where it is, and what it has."""
        if self.cluster is None:
            return "this machine"
        of_types = f" ({', '.join(self.types)})" if self.types else " of no type that Ray knows" if self.gpus else ""
        has = "" if self.silent else f", with {self.gpus} GPUs{of_types}"
        return f"the Ray cluster at RAY_ADDRESS={self.cluster}{has}"

    @property
    def no_answer(self) -> str:
        """What a silent cluster is refused with."""
        return f"{self} does not answer ({self.silent}): start it on this node, or correct or unset RAY_ADDRESS"


def cluster_address() -> str | None:
    """Read the address of the cluster that a run joins, as Ray does; None where the run starts a Ray of its own."""
    address = os.environ.get("RAY_ADDRESS", "")
    return None if address in ("", "local") else address


def is_on_loopback(address: str) -> bool:
    """Say whether a cluster at this address is on this machine alone; of "auto" nobody knows."""
    return address.startswith(("127.", "localhost:", "[::1]"))


def machine() -> Machine:
    """Decide, here alone, whether a run is for CPUs or GPUs. Processes of a run ask `is_without_cuda`, and what works
    in one process alone asks torch about that process."""
    import torch  # not above: this module is for commands that load nothing, too

    cuda, address = torch.cuda.is_available(), cluster_address()
    if address is None:
        return Machine(not cuda, torch.cuda.device_count() if cuda else None)
    resources, silent = _asked(address)
    return Machine(not cuda, None, address, silent=silent) if silent else of_cluster(address, resources, cuda=cuda)


def of_cluster(address: str, resources: Mapping[str, float], *, cuda: bool) -> Machine:
    """Return the cluster with these resources; ``cuda``: whether this machine, which belongs to it, has CUDA.

    GPUs without a type are mere numbers: that is how Ray hands out places on CPUs.
    """
    gpus = int(resources.get("GPU", 0))
    types = tuple(sorted(name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE)))
    return Machine(not (gpus and (types or cuda)), gpus, address, types)


@functools.cache  # a command asks once
def _asked(address: str) -> tuple[Mapping[str, float], str | None]:
    """Ask the cluster for its resources; return them, and why it gave none (else None)."""
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        command = [sys.executable, "-m", "oger_recipe.pipeline.driver.start_ray"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        return json.loads(done.stdout.splitlines()[-1]), None
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {_LIMIT_S:g} s"
    except OSError as error:
        return {}, error.strerror or str(error)
    except (IndexError, ValueError):
        return {}, (done.stderr.strip().splitlines() or ["Ray says nothing"])[-1]
