"""Whether what a policy may write fits into what the reward's models read."""

from __future__ import annotations

from collections.abc import Iterator

from oger_recipe.base.errors import RecipeError
from oger_recipe.lab.built_in_models import PRMS
from oger_recipe.models.keys import Question
from oger_recipe.models.server import window_at
from oger_recipe.models.step_text import StepWriter
from oger_recipe.models.tokens import load_tokenizer, tokens_of, window_of
from oger_recipe.rewards.spec import Keys

_LETTERS = 4  # of a token, where the tokenizer is a server's


def window_problems(keys: Keys, longest: int, steps: int) -> Iterator[tuple[bool, str]]:
    """Yield (no text fits, sentence) for each model of a source that may get a longer text than it reads.

    longest: tokens of prompt and response, data.max_len; steps: of reasoning, how many a response may have at least.
    """
    for question in {question.model: question for question in keys.questions()}.values():
        model, room = question.model, question.room
        if model.model in PRMS:  # still to be trained
            continue
        window, text = (
            window_at(model) if model.runs_on == "server" else window_of(model),
            question.responses * longest,
        )
        if window is None or text + room <= window / 2:  # what is around a text takes less than half
            continue
        try:
            own = _own_tokens(question, steps)
        except RecipeError:  # said by the checks of plugins and tokenizers
            continue
        if text + own + room > window:
            written = f", its reply {room}" if room else ""
            yield (
                own + room >= window,
                f"{model.model} reads {window:,} tokens in all: prompt and response may have {text:,} (data.max_len), "
                f"the text around them about {own:,}{written}. on_overflow ({model.on_overflow}) decides "
                f"what a longer one gets: raise max_model_len if the model allows it, or lower data.max_len",
            )


def _own_tokens(question: Question, steps: int) -> int:
    """Count the tokens that a plugin, or a PRM's format, puts around a response."""
    model, plugin = question.model, question.plugin
    if plugin is None:
        if not model.scores_steps:
            return 0
        written = StepWriter(model.prm, load_tokenizer(model)).write("x", ["x"] * steps)
        return len(getattr(written, "tokens", ()))
    try:
        (text,) = plugin.preprocess(["x"], [question.example])
    finally:
        plugin.close()
    if not isinstance(text, str):  # it gives no text for such a call
        return 0
    return len(text) // _LETTERS if model.chats else len(tokens_of(load_tokenizer(model), text))
