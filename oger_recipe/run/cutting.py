"""Whether the responses of a model can be cut into steps of reasoning, looked at before anything of it is loaded."""

from __future__ import annotations

from typing import Any

from oger_recipe.errors import RecipeError
from oger_recipe.steps import StepCutter, StepRule

_PROBE = "So 3 + 4 = 7.\n\nThen, \u00e9\u65e5\U0001f600 \\frac{1}{2}\n"


def require_steps(tokenizer: Any, rule: StepRule) -> None:
    """Raise RecipeError for a rule that cannot cut what this tokenizer writes."""
    for token in rule.delimiter_token_ids:
        if token >= len(tokenizer):
            raise RecipeError(
                f"oger.steps.delimiter_token_ids: {token} is no token of actor.model_name_or_path, which has 0 to "
                f"{len(tokenizer) - 1}"
            )
    for text, token in tokenizer.get_added_vocab().items():
        holders = [each for each in rule.delimiters if text in each]
        if holders and not tokenizer.decode([token], skip_special_tokens=True):
            raise RecipeError(
                f"oger.steps.delimiters: {holders[0]!r} has the special token {text} in it, which the texts of "
                f"responses do not have: set oger.steps.delimiter_token_ids [{token}] instead"
            )
    tokens = tokenizer.encode(_PROBE, add_special_tokens=False)
    if "".join(StepCutter(tokenizer, rule).texts(tokens)) != tokenizer.decode(tokens, skip_special_tokens=True):
        raise RecipeError(
            "oger.steps: the tokenizer of actor.model_name_or_path changes texts where tokens meet, so that a "
            "response cannot be cut between tokens into steps of reasoning"
        )
