"""A critic's value head with hidden layers, in place of OpenRLHF's linear one."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from openrlhf.models import model as openrlhf_model
from openrlhf.trainer.ray import ppo_critic

from oger_recipe.settings.critic import SAVED_SIZES, CriticSettings


class ValueHead(torch.nn.Sequential):
    """Linear layers of these widths with ReLU between them, and one number at the end."""

    def __init__(self, width: int, hidden_sizes: list[int]) -> None:
        layers: list[torch.nn.Module] = []
        for size in hidden_sizes:
            layers += [torch.nn.Linear(width, size), torch.nn.ReLU()]
            width = size
        super().__init__(*layers, torch.nn.Linear(width, 1, bias=False))

    @property
    def weight(self) -> torch.nn.Parameter:
        """The last layer's: OpenRLHF sets the weight of its linear head under this name."""
        return self[-1].weight  # type: ignore[return-value]

    def reset(self) -> None:
        """Draw He's weights for the hidden layers (arXiv 1502.01852), and the last one's as OpenRLHF does.

        They follow from the process's seed alone: how much was drawn before differs with ranks and with what was
        loaded earlier.
        """
        generator = torch.Generator(self.weight.device).manual_seed(torch.initial_seed())
        for layer in self:
            if isinstance(layer, torch.nn.Linear):
                with _whole(layer) as changes:
                    if not changes:
                        continue
                    is_last = layer is self[-1]
                    std = 1 / (layer.in_features + 1) if is_last else (2 / layer.in_features) ** 0.5
                    layer.weight.data.normal_(mean=0.0, std=std, generator=generator)
                    if layer.bias is not None:
                        layer.bias.data.zero_()


@contextlib.contextmanager
def _whole(layer: torch.nn.Linear) -> Iterator[bool]:
    """Gather the layer's parameters, which ZeRO 3 shards; yield whether this rank is to change them."""
    parameters = list(layer.parameters())
    if not hasattr(layer.weight, "ds_id"):
        yield True
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
        yield torch.distributed.get_rank() == 0


@contextlib.contextmanager
def value_heads(settings: CriticSettings) -> Iterator[None]:
    """Let OpenRLHF build its critic with a head of the sizes that the settings or the network it loads ask for.

    Raises RecipeError, where the network is loaded, for sizes that are not its own.
    """
    build, critic_class = ppo_critic.get_llm_for_sequence_regression, openrlhf_model._get_critic_model
    new: list[ValueHead] = []

    def class_with_head(base: Any, llm: Any, prefix: str = "score", *packing: bool) -> type:
        class CriticWithHead(critic_class(base, llm, prefix, *packing)):  # type: ignore[misc]
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                saved = getattr(config, SAVED_SIZES, None)
                sizes = settings.of_network(saved)
                if not sizes:
                    return
                head = ValueHead(config.hidden_size, sizes)
                setattr(self, prefix, head)
                setattr(config, SAVED_SIZES, sizes)
                if saved is None:
                    new.append(head)
                self.post_init()

        return CriticWithHead

    def built(*args: Any, **kwargs: Any) -> Any:
        critic = build(*args, **kwargs)
        for head in new:
            head.reset()
        if settings.head_only:
            for name, parameter in critic.named_parameters():
                if kwargs["value_head_prefix"] not in name.split("."):
                    parameter.requires_grad_(False)
        return critic

    ppo_critic.get_llm_for_sequence_regression, openrlhf_model._get_critic_model = built, class_with_head
    try:
        yield
    finally:
        ppo_critic.get_llm_for_sequence_regression, openrlhf_model._get_critic_model = build, critic_class
