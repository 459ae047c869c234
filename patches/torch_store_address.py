"""torch's stores listen on the address that they are given alone.

Upstream: torch.distributed.rendezvous._create_c10d_store, through which init_process_group makes its TCPStore.
Why: a TCPStore's server listens on every address of the machine and asks nobody who they are, with CUDA and without;
the rest of a run listens on loopback or asks for a token. Given a socket that listens already, it takes that.
Checked: torch 2.13.0. Needed for as long as a TCPStore for 127.0.0.1 listens elsewhere, too.
"""

import errno
import functools
import importlib
import socket
from typing import Any

import torch

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "5e4ae7b3a73720833b69a0c76e59d3634b82f2ddf27fce16c355a4aeb12c52f3"


_held: dict[int, socket.socket] = {}  # by port, until a store of this process takes it


def held_port(address: str) -> int:
    """Choose a free port of ``address`` that nobody else can take before a store of this process listens on it.

    Raises OSError for an address that no interface has.
    """
    server = _listening(address, 0)
    port: int = server.getsockname()[1]
    _held[port] = server
    return port


def _listening(address: str, port: int) -> socket.socket:
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def store(host_name: str, port: int, world_size: int, is_master: bool, **options: Any) -> torch.distributed.TCPStore:
    """Make a TCPStore whose server, if this process is to have it, listens on ``host_name`` alone.

    An address that no interface has (of a NAT, say) cannot be listened on: then it listens everywhere, as upstream.
    Upstream also finds a server that this process has on the port already, as a worker of vLLM's Ray executor has.
    """
    if is_master:
        try:
            server = _held.pop(port, None) or _listening(host_name, port)
            options["master_listen_fd"] = server.detach()
        except OSError as error:
            may_be_ours = error.errno == errno.EADDRINUSE and options.get("multi_tenant")
            if error.errno != errno.EADDRNOTAVAIL and not may_be_ours:
                raise
    return torch.distributed.TCPStore(host_name, port, world_size, is_master, **options)


@functools.cache
def apply() -> None:
    """Make init_process_group use `store` in this process."""
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # as an attribute, that is a function
    require_source(rendezvous._create_c10d_store, SOURCE_SHA256, package="torch", checked="2.13.0", patch=__name__)
    rendezvous.TCPStore = store
