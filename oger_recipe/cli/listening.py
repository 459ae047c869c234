"""Where the commands that serve listen."""

import ipaddress
import socket

from oger_recipe.base.errors import RecipeError


def is_loopback(host: str) -> bool:
    """Say whether this address can be reached by processes of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Open the listening socket. Raises RecipeError where that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        raise RecipeError(
            f"cannot listen on {host} port {port}: {error.strerror}; --port 0 takes a free one"
        ) from error
    return listener
