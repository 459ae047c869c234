"""One rank of a real training without Ray and vLLM: OpenRLHF's policy or critic actor and DeepSpeed.

``python -m oger_recipe.pipeline.policy.trial RANK RANKS PORT FOLDER`` reads FOLDER/cases.json, trains the policy in
FOLDER/policy for two optimizer steps in each case and writes, on rank 0, FOLDER/results.pt: for each case the change
of every parameter, the gradient norms, the last reported figures, the most memory that CUDA's tensors took, and of a
policy with adapters the plain model's parameters.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oger_recipe.pipeline.policy import adapters, critic_actor, policy_actor

# isort: split
import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils import get_strategy
from openrlhf.utils.config import hierarchize
from peft import PeftModel

PROMPT, LONGEST = 3, 20
LENGTHS = [[3, 18, 5, 20, 4, 11, 7, 16], [20, 2, 9, 6, 17, 3, 12, 8]]  # of the responses of the two steps
# Adam with a large eps, so that the size of a gradient shows; without PPO's clipping: a token at its bound would fall
# on one side in one run and on the other in the next.
SETTINGS = {
    f"{role}.{name}": value
    for role in ("actor", "critic")
    for name, value in (
        ("adam.lr", 0.2), ("adam.eps", 1.0), ("max_norm", 0.0), ("lr_scheduler", "constant"), ("lr_warmup_ratio", 0.0)
    )
} | {
    "rollout.batch_size": 2, "rollout.n_samples_per_prompt": 4, "train.batch_size": len(LENGTHS[0]),
    "rollout.max_new_tokens": LONGEST, "actor.entropy_coef": 0.01, "oger.loss_remove_clip": True,
}  # fmt: skip
# What has to train the same: two rows at a time, and dynamic batches of three micro-batches and more.
CUTS: dict[str, dict[str, Any]] = {
    "static": {"train.micro_batch_size": 2},
    "dynamic": {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 30},
}


def rows_of_step(step: int, times: int = 1) -> list[Experience]:
    """Make eight rows in steps of reasoning of three tokens; the third is a teacher's, the sixth begins with four of a
    teacher's tokens. ``times``: the length of the responses over LENGTHS."""
    generator = torch.Generator().manual_seed(step)
    rows = []
    for number, length in enumerate(each * times for each in LENGTHS[step]):
        total = PROMPT + length
        mask = torch.zeros(1, total - 1, dtype=torch.long)
        mask[:, PROMPT - 1 :] = 1
        of_teacher = {2: length, 5: min(4, length)}.get(number, 0)
        rows.append(
            Experience(
                sequences=torch.randint(3, 250, (1, total), generator=generator),
                attention_mask=torch.ones(1, total, dtype=torch.long),
                action_mask=mask,
                action_log_probs=(-5.5 + 0.2 * torch.randn(mask.shape, generator=generator)) * mask,
                values=0.1 * torch.randn(mask.shape, generator=generator) * mask,
                returns=torch.randn(1, 1, generator=generator) * mask,
                advantages=torch.randn(1, 1, generator=generator) * mask,
                total_length=torch.tensor([float(total)]),
                step_index=(mask.cumsum(dim=1) + 2) // 3 * mask,
                info={"off_policy_tokens": torch.tensor([float(of_teacher)])},
            )
        )
    return rows


def _masters(module: torch.nn.Module, actor: Any, role: str) -> dict[str, torch.Tensor]:
    """Return the float32 copy of every trained parameter, whole on every rank, in main memory."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    optimizer = getattr(actor, f"{role}_optim")
    if hasattr(optimizer, "fp32_groups"):  # without ZeRO: a list of copies beside a list of parameters
        of = {
            id(low): high
            for lows, highs in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
            for low, high in zip(lows, highs, strict=True)
        }
        return {name: of[id(parameter)].detach().cpu().clone() for name, parameter in trained}
    return {name: safe_get_full_fp32_param(parameter).cpu().clone() for name, parameter in trained}


def _whole(parameter: torch.nn.Parameter) -> torch.Tensor:
    with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
        return parameter.detach().float().cpu().clone()


def trained_actor(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> tuple[Any, torch.nn.Module]:
    """Make the actor of ``case`` (settings by flag, role), and the model that it trains."""
    policy = str(folder / "policy")
    places = {f"{role}.model_name_or_path": policy for role in ("actor", "critic")} | {"ckpt.path": str(folder / "no")}
    args = hierarchize(Namespace(**case["settings"] | places))
    args.actor.eps_clip_low_high = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
    role = _role(case)
    kind = policy_actor.OgerPolicyModelActor if role == "actor" else critic_actor.OgerCriticModelActor
    actor = kind(ranks, rank, "127.0.0.1", port)
    torch.manual_seed(0)  # of the critic's new value head
    actor.init_model_from_pretrained(get_strategy(args), policy, max_steps=10)
    return actor, actor.actor.model.module if role == "actor" else actor.critic.module


def _role(case: dict[str, Any]) -> str:
    return str(case.get("role", "actor"))


def _train(case: dict[str, Any], rank: int, ranks: int, port: int, folder: Path) -> dict[str, Any]:
    """Train by ``case``, which also says how much longer rows are than LENGTHS (times)."""
    actor, module = trained_actor(case, rank, ranks, port, folder)
    role = _role(case)
    before = _masters(module, actor, role)
    norms = []
    for step in (0, 1):
        for row in rows_of_step(step, case.get("times", 1))[rank::ranks]:
            actor.append(row)
        status = actor.fit()
        norms.append(float(status[f"{role}_grad_norm"]))
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    after = _masters(module, actor, role)
    change = {name: after[name] - before[name] for name in before}
    plain = adapters.merged_parameters(module) if isinstance(module, PeftModel) else ()
    merged = {name: _whole(parameter) for name, parameter in plain}
    status = {name: float(value) for name, value in status.items()}
    return {"change": change, "norms": norms, "status": status, "peak": peak, "merged": merged}


def apart(found: dict[str, Any], expected: dict[str, Any]) -> tuple[float, float]:
    """Return 1 - cosine of two results' changes of all parameters, and the largest relative difference of a norm.

    bfloat16 rounds away up to 0.001 and 0.02 in two steps; a lost or doubled micro-batch is a third and more.
    """
    ours, theirs = (torch.cat([change.flatten() for change in each["change"].values()]) for each in (found, expected))
    pairs = [(ours.norm().item(), theirs.norm().item()), *zip(found["norms"], expected["norms"], strict=True)]
    cosine = torch.cosine_similarity(ours, theirs, dim=0).item()
    return 1 - cosine, max(abs(a - b) / b for a, b in pairs)


def main(train: Callable[..., dict[str, Any]] = _train) -> None:
    """Train every case of FOLDER/cases.json, and write what ``train`` returns of each."""
    rank, ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    cases = json.loads((folder / "cases.json").read_text())
    results = {case["name"]: train(case, rank, ranks, port, folder) for case in cases}
    if rank == 0:
        torch.save(results, folder / "results.pt")


if __name__ == "__main__":
    main()
