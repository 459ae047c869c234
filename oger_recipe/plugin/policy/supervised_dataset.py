"""Teacher trajectories as supervised examples, token by token as they are in a rollout."""

import torch
from openrlhf.datasets import SFTDataset


class TeacherDataset(SFTDataset):
    """Rows {"prompt": tokens, "response": tokens} behind the interface of OpenRLHF's SFTDataset.

    Upstream joins texts, tokenizes them together, and ends every one with the end-of-sequence token, a trajectory that
    was cut in mid-thought as well.
    """

    def __init__(self, dataset, tokenizer, max_length: int, strategy, **settings) -> None:
        self.rows, self.tokenizer = dataset, tokenizer  # collate_fn pads with the tokenizer's token

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, attention mask and loss mask, [1, T] each; the loss mask speaks of the token that follows."""
        row = self.rows[index]
        tokens = torch.tensor([[*row["prompt"], *row["response"]]])
        loss_mask = torch.zeros(tokens.shape)
        loss_mask[0, len(row["prompt"]) - 1 : -1] = 1
        return tokens, torch.ones_like(tokens), loss_mask
