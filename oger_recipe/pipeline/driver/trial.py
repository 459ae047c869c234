"""A policy in this process beside an engine in Ray's: what a run has of the two, for checks of what passes between.

Import install.py first, which prepares the process, and call install() once Ray is there.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ray import ppo_actor, vllm_engine
from openrlhf.trainer.ray.utils import get_physical_gpu_id
from torch.multiprocessing.reductions import reduce_tensor
from vllm import SamplingParams

from oger_recipe.algorithm.engine_agreement import Agreement

PROMPTS = ("Using the numbers [3, 5, 12], make 96.", "12*(3+5)=96", "Answer:")
MAX_LEN = 64
Samples = list[tuple[list[int], list[float]]]  # tokens with those of the prompt; the engine's log-probability of each


class EngineTrial:
    """``model``: the policy, in bfloat16; its engine starts with the same weights. Ray is there already.

    device: where both are. With ``cuda`` weights travel by CUDA's handles between processes, as with
    train.colocate_all; otherwise through a group with the policy as rank 0, to be joined by `connect`.
    """

    def __init__(
        self,
        folder: Path,
        model: Any,
        tokenizer: Any,
        *,
        device: str = "cpu",
        eager: bool = True,
        sleeps: bool = False,
    ) -> None:
        self.tokenizer, self.model, self.device = tokenizer, model, device
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        model.to(device)
        [self.engine] = vllm_engine.create_vllm_engines(
            num_engines=1,
            tensor_parallel_size=1,
            pretrain=str(folder),
            seed=1,
            full_determinism=False,
            enable_prefix_caching=False,
            enforce_eager=eager,
            max_model_len=MAX_LEN,
            gpu_memory_utilization=0.1 if device == "cpu" else 0.3,
            vllm_enable_sleep=sleeps,
        )
        if sleeps:  # as upstream leaves it
            self.wake_up()

    def sleep(self) -> None:
        ray.get(self.engine.sleep.remote())

    def wake_up(self) -> None:
        ray.get(self.engine.wake_up.remote())

    def connect(self) -> None:
        """Join as OpenRLHF's ActorPPOTrainer._init_vllm_sync_group does; there is nothing to join on CUDA."""
        if self.device == "cuda":
            return
        address = ray._private.services.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        joined = self.engine.init_process_group.remote(address, port, 1, 2, "openrlhf", backend="gloo", use_ray=False)
        self.group = ppo_actor.stateless_init_process_group(address, port, 0, 2, torch.cuda.current_device())
        ray.get(joined)

    def send(self) -> None:
        """Send the weights as OpenRLHF's ActorPPOTrainer.broadcast_to_vllm does."""
        for name, weight in self.model.named_parameters():
            kind = {"dtype": weight.dtype, "shape": weight.shape, "empty_cache": False}
            if self.device == "cuda":
                kept = weight.data.clone()  # until the engine has read it
                handles = {get_physical_gpu_id(): reduce_tensor(kept)}
                ray.get(self.engine.update_weight_cuda_ipc.remote(name, ipc_handles=handles, **kind))
                continue
            loaded = self.engine.update_weight.remote(name, **kind)
            self.group.broadcast(weight.data, src=0, stream=torch.cuda.current_stream())
            ray.get(loaded)

    def sample(self, prompts: Sequence[str] = PROMPTS, *, number: int = 4, temperature: float = 1.0) -> Samples:
        """Sample ``number`` answers to each prompt, all at a time."""
        sampling = SamplingParams(temperature=temperature, max_tokens=24, min_tokens=8, skip_special_tokens=False)
        arguments = dict(label="", sampling_params=sampling, max_length=MAX_LEN, hf_tokenizer=self.tokenizer)
        asked = [self.engine.generate_responses.remote(prompt=p, num_samples=number, **arguments) for p in prompts]
        answers = [answer for group in ray.get(asked) for answer in group]
        return [
            (answer["observation_tokens"], answer["rollout_log_probs"][start:])
            for answer in answers
            for start, _ in answer["action_ranges"]
        ]

    def log_probs(self, samples: Samples, *, exact: bool = False) -> torch.Tensor:
        """Return the policy's log-probabilities of all sampled tokens, [tokens]; ``exact``: computed in float32."""
        model = copy.deepcopy(self.model).float() if exact else self.model
        chosen = []
        for tokens, engine in samples:
            ids = torch.tensor([tokens], device=self.device)
            with torch.no_grad():
                logits = model(ids).logits[0, :-1].float()
            picked = logits.log_softmax(dim=-1).gather(1, ids[0, 1:, None]).squeeze(1)
            chosen.append(picked[-len(engine) :].cpu())
        return torch.cat(chosen)

    def agreement(self, samples: Samples, *, exact: bool = False) -> Agreement:
        """Compare the engine's log-probabilities with the policy's."""
        engine = torch.tensor([value for _, values in samples for value in values])
        return Agreement.of(engine - self.log_probs(samples, exact=exact), top_p=1.0, top_k=-1)
