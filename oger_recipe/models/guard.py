"""What `oger serve-judge` puts before vLLM's server where a key is set. vLLM imports it by its name."""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

VARIABLE = "VLLM_API_KEY"
_OPEN = ("/health",)


class KeyForEveryPath:
    """Asks for the bearer token everywhere: vLLM itself does so below /v1, and not at /classify and /pooling."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app, self._wanted = app, f"Bearer {os.environ[VARIABLE]}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": "the key is missing or wrong"}'})
                return
        await self._app(scope, receive, send)
