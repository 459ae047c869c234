"""``python -m oger_recipe.pipeline.policy.sft FLAGS``: openrlhf.cli.train_sft on teacher trajectories (run/sft.py).

They are learnt token by token as they are in a rollout.
"""

import runpy
import sys

import openrlhf.datasets
import torch


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


def main() -> None:
    openrlhf.datasets.SFTDataset = TeacherDataset  # train_sft takes it from there by name
    sys.argv[0] = "openrlhf.cli.train_sft"
    runpy.run_module("openrlhf.cli.train_sft", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
