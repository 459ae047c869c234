"""Kinds of sources of reward: a file each, with its keys and its source. This is their list."""

from collections.abc import Mapping
from typing import Any

from oger_recipe.rewards.kinds.bonus import BonusKeys
from oger_recipe.rewards.kinds.classifier import ClassifierKeys, CritiqueKeys
from oger_recipe.rewards.kinds.implicit import ImplicitKeys
from oger_recipe.rewards.kinds.judge import JudgeKeys
from oger_recipe.rewards.kinds.length import LengthKeys
from oger_recipe.rewards.kinds.own import OwnKeys
from oger_recipe.rewards.kinds.pairwise import PairwiseKeys
from oger_recipe.rewards.kinds.process import TaggedKeys
from oger_recipe.rewards.kinds.rubric import RubricKeys
from oger_recipe.rewards.kinds.similarity import SimilarityKeys
from oger_recipe.rewards.kinds.step_judge import StepJudgeKeys
from oger_recipe.rewards.kinds.uniqueness import UniquenessKeys
from oger_recipe.rewards.kinds.unlikeliness import UnlikelinessKeys
from oger_recipe.rewards.kinds.verifier import VerifierKeys
from oger_recipe.rewards.spec import Keys

KINDS: dict[str, type[Keys]] = {
    "verifier": VerifierKeys,
    "bonus": BonusKeys,
    "uniqueness": UniquenessKeys,
    "unlikeliness": UnlikelinessKeys,
    "similarity": SimilarityKeys,
    "judge": JudgeKeys,
    "pairwise": PairwiseKeys,
    "classifier": ClassifierKeys,
    "critique_classifier": CritiqueKeys,
    "process": TaggedKeys,
    "length": LengthKeys,
    "rubric": RubricKeys,
}
# Kinds that take the place of another where the entry's `scorer` says so.
SCORERS: dict[str, dict[str, type[Keys]]] = {"process": {"implicit": ImplicitKeys, "judge": StepJudgeKeys}}


def kind_of(entry: Mapping[str, Any]) -> type[Keys] | None:
    """Find the kind of an entry, whose ``kind`` is a name in KINDS or an import path; None where it is neither."""
    kind = entry.get("kind")
    if not isinstance(kind, str):
        return None
    if ":" in kind:
        return OwnKeys
    return SCORERS.get(kind, {}).get(str(entry.get("scorer")), KINDS.get(kind))
