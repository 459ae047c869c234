"""How the rows of a training step are cut into micro-batches."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from oger_recipe.algorithm.batches import longest_first


class LengthSortedBatches(Sampler[list[int]]):
    """Micro-batches of random optimizer steps, sorted by length within each step.

    An optimizer step's gradient does not depend on how its rows are cut (its loss is normalised over all of them), so
    that only padding is saved. Rows that do not fill a micro-batch are left out, as OpenRLHF does.
    """

    def __init__(self, lengths: list[int], batch_size: int, accumulated: int) -> None:
        self.lengths, self.batch_size, self.accumulated = lengths, batch_size, accumulated

    def __len__(self) -> int:
        return len(self.lengths) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        rows = torch.randperm(len(self.lengths))[: len(self) * self.batch_size].tolist()
        of_step = self.batch_size * self.accumulated
        for start in range(0, len(rows), of_step):
            step = rows[start : start + of_step]
            ranked = [step[position] for position in longest_first([self.lengths[row] for row in step])]
            for first in range(0, len(step), self.batch_size):
                yield ranked[first : first + self.batch_size]
