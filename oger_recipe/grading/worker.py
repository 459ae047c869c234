"""A process that grades: one answer after the other, until the pool hangs up or kills it."""

from __future__ import annotations

import signal
import socket
from dataclasses import asdict
from typing import Any

from oger_recipe.base import stacks
from oger_recipe.base.secrets import redacted, said_by
from oger_recipe.grading.descendants import begin_below, limit_memory
from oger_recipe.grading.messages import answer_all
from oger_recipe.grading.verdict import Graded, NoVerdict, UnreadableAnswer, as_verdict
from oger_recipe.grading.verifiers import VERIFIERS, verify


def grade(task: str, response: str, answer: str, options: dict[str, Any]) -> Graded:
    """Return the verdict, or why there is none; raises no Exception."""
    try:
        return Graded(as_verdict(verify(task, response, answer, **options)))
    except UnreadableAnswer as error:
        return Graded.failed(redacted(str(error))[:1000], unreadable=True)
    except NoVerdict as error:
        return Graded.failed(redacted(str(error))[:1000])
    except MemoryError:
        return Graded.failed("MemoryError: grading took more memory than its limit")
    except Exception as error:
        return Graded.failed(said_by(error)[:1000])
    except BaseException as error:
        if task in VERIFIERS or isinstance(error, KeyboardInterrupt):  # a signal's, to the process that grades
            raise
        what = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
        return Graded.failed(redacted(f"the verifier {what}")[:1000])


def serve(connection: socket.socket, memory_limit: int) -> None:
    """Answer until the pool hangs up. The worker has a process group of its own, which the pool kills as a whole."""
    begin_below()
    stacks.answer()
    for ignored in (signal.SIGCHLD, signal.SIGTERM):  # by the fork server; verifiers read their children's exits
        signal.signal(ignored, signal.SIG_DFL)
    limit_memory(memory_limit)
    answer_all(connection, lambda *answer: {"graded": asdict(grade(*answer))})
