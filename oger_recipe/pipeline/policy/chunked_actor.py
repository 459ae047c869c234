"""OpenRLHF's Actor with log-probabilities and entropies made a few tokens at a time (algorithm/token_stats.py).

Upstream holds the logits of a micro-batch, [tokens, vocabulary], several times in float32. Here the output layer
itself gives the two numbers a token that training needs, and only for tokens of responses.
"""

from __future__ import annotations

import torch
from openrlhf.models.actor import Actor
from openrlhf.models.ring_attn_utils import (
    gather_and_pad_tensor,
    get_tensor_in_current_ring_attn_rank,
    unpad_and_slice_tensor,
)

from oger_recipe.algorithm.token_stats import token_log_probs_and_entropy


class _StatsOfTokens:
    """In place of the output layer's forward: [B, T, 3] of log-probability, entropy (nats) and 1, in float32.

    It stays the layer's own forward, so that whatever shards or offloads its weight finds it in use. The ones tell
    whether the model does anything to its logits afterwards.
    """

    def __init__(self, head: torch.nn.Linear) -> None:
        self._head, self._logits = head, head.forward
        self.labels: torch.Tensor | None = None  # [B, T]; None: logits are wanted
        self.rows: torch.Tensor | None = None  # places of the tokens that are wanted, in [B * T]
        self.temperature = 1.0

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.labels is None or self.rows is None:
            return self._logits(hidden)
        log_probs, entropy = token_log_probs_and_entropy(
            hidden.flatten(0, 1).index_select(0, self.rows),
            self._head.weight,
            self.labels.flatten().index_select(0, self.rows),
            temperature=self.temperature,
        )
        found = torch.stack([log_probs, entropy, torch.ones_like(log_probs)], dim=-1)
        stats = found.new_zeros(hidden.shape[0] * hidden.shape[1], 3)
        return stats.index_copy(0, self.rows, found).unflatten(0, hidden.shape[:2])


class ChunkedActor(Actor):
    """Actor's results for response tokens; models whose output layer is no plain matrix go Actor's own way."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        head = self.model.get_output_embeddings()
        is_plain = type(head) is torch.nn.Linear and head.bias is None and not getattr(self, "is_vlm", False)
        self._stats = _StatsOfTokens(head) if is_plain else None
        self._hands_on = False  # the model was seen to leave alone what its output layer gives
        if self._stats:
            head.forward = self._stats

    def forward(
        self, sequences, action_mask=None, attention_mask=None, return_output=False, ring_attn_group=None, **other
    ):
        """Return what Actor does, for response tokens: log-probabilities [B, A], and with return_output the model's
        output, whose entropy [B, T - 1] is 0 elsewhere and whose logits are gone.

        Raises:
            RuntimeError: the model replaces its output layer, or changes its logits afterwards.
        """
        if self._stats is None or action_mask is None:
            return super().forward(
                sequences, action_mask, attention_mask, return_output, ring_attn_group=ring_attn_group, **other
            )
        length, actions = sequences.shape[1], action_mask.shape[1]
        wanted = torch.zeros_like(sequences, dtype=torch.bool)
        wanted[:, length - 1 - actions : length - 1] = action_mask.bool()
        if self.packing_samples:
            output = self._of_packed(sequences, attention_mask, wanted, ring_attn_group)
        else:
            positions = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
            labels = torch.roll(sequences, shifts=-1, dims=1)
            output = self._output(sequences, attention_mask, positions, labels, wanted)
        output.entropy = output.entropy[:, :-1]
        log_probs = output.log_probs[:, :-1][:, -actions:] * action_mask.float()
        return (log_probs, output) if return_output else log_probs

    def _of_packed(self, sequences, attention_mask, wanted, ring_attn_group):
        """Do as ``_output``, by way of one row without padding."""
        inputs, positions, labels, padding, indices = unpad_and_slice_tensor(
            sequences, attention_mask, ring_attn_group
        )
        packed = wanted.flatten()[indices].unsqueeze(0)
        if ring_attn_group is not None:
            packed, _ = get_tensor_in_current_ring_attn_rank(packed, ring_attn_group, 0)
        output = self._output(inputs, None, positions, labels, packed)
        output.log_probs, output.entropy = (
            gather_and_pad_tensor(part, ring_attn_group, padding, indices, *sequences.shape)
            for part in (output.log_probs, output.entropy)
        )
        return output

    def _output(self, inputs, attention_mask, positions, labels, wanted):
        """Return the model's output with log_probs and entropy, [B, T] each, in place of logits.

        The number of wanted tokens is all that is waited for on a GPU before it has work.
        """
        stats, rows = self._stats, wanted.flatten().nonzero().squeeze(1)
        stats.labels, stats.rows, stats.temperature = labels, rows, self.temperature
        try:
            output = self.model(inputs, attention_mask=attention_mask, position_ids=positions)
        finally:
            stats.labels = stats.rows = None
        result = output.logits
        # Whether a model changes its logits shows at the first ones; looking each time would stop a GPU each time.
        is_known = self._hands_on or torch.equal(result[..., -1].detach(), wanted.to(result.dtype))
        self._hands_on |= is_known and len(rows) > 0
        if result.shape[-1] != 3 or not is_known:
            raise RuntimeError(
                "the model replaces its output layer, or changes its logits afterwards (a cap, a scale): set "
                "--no-oger.chunked_token_stats"
            )
        output.log_probs, output.entropy = result[..., 0], result[..., 1]
        output.logits = None
        return output
