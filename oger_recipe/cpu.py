"""Cores and threads, and what every process needs in its environment on a machine without CUDA."""

import os

CORES = len(os.sched_getaffinity(0))  # that this process may use; a scheduler may give it fewer than there are
_ASKED = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # further numbers are for nested loops
THREADS = int(_ASKED) if _ASKED.isdigit() and int(_ASKED) else CORES  # of one process in one operation

CPU_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "TORCH_COMPILE_DISABLE": "1",  # OpenRLHF compiles its entropy: that needs a C++ compiler
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",  # on a CPU .to(device) does not copy: edits would reach shared memory
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),  # GiB, at most
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less: the worker lives in the engine's
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an empty CUDA_VISIBLE_DEVICES confuses vLLM
    "OMP_NUM_THREADS": str(THREADS),  # else Ray gives every actor one thread
}

ON_GPUS = "OGER_ON_GPUS"  # in the environment of all processes of a run that has GPUs


def is_without_cuda() -> bool:
    """Whether this process is to do without CUDA.

    In a run the driver has said so: an actor without a GPU of its own sees none, also on a machine that has some.
    """
    if ON_GPUS in os.environ:
        return False
    import torch  # not above: this module is for commands that load nothing, too

    return not torch.cuda.is_available()
