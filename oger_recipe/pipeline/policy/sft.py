"""``python -m oger_recipe.pipeline.policy.sft FLAGS``: openrlhf.cli.train_sft on teacher trajectories (run/sft.py).

They are learnt token by token as they are in a rollout. A policy with adapters is saved as a whole model, too.
"""

import runpy
import sys

import openrlhf.datasets
import torch
from openrlhf.utils import deepspeed
from peft import PeftModel

from oger_recipe.pipeline.policy.adapters import save_merged


class TeacherDataset(openrlhf.datasets.SFTDataset):
    """Rows {"prompt": tokens, "response": tokens} behind the interface of OpenRLHF's SFTDataset.

    Upstream joins texts, tokenizes them together, and ends every one with the end-of-sequence token, a trajectory that
    was cut in mid-thought as well.
    """

    def __init__(self, dataset, tokenizer, max_length: int, strategy, **settings) -> None:
        self.rows, self.tokenizer = dataset, tokenizer  # collate_fn pads with the tokenizer's token

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return tokens, attention mask and loss mask, [1, T] each; the loss mask speaks of the token that follows."""
        row = self.rows[index]
        tokens = torch.tensor([[*row["prompt"], *row["response"]]])
        loss_mask = torch.zeros(tokens.shape)
        loss_mask[0, len(row["prompt"]) - 1 : -1] = 1
        return tokens, torch.ones_like(tokens), loss_mask


class WholeModels(deepspeed.DeepspeedStrategy):
    """OpenRLHF's strategy, which would save the adapter alone where there is one."""

    def save_model(self, model, tokenizer, output_dir, **settings) -> None:
        plain = model.model.module
        if isinstance(plain, PeftModel):
            save_merged(plain, tokenizer, output_dir, writes=self.is_rank_0())
        else:
            super().save_model(model, tokenizer, output_dir, **settings)


def main() -> None:
    openrlhf.datasets.SFTDataset = TeacherDataset  # train_sft takes both from there by name
    deepspeed.DeepspeedStrategy = WholeModels
    sys.argv[0] = "openrlhf.cli.train_sft"
    runpy.run_module("openrlhf.cli.train_sft", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
