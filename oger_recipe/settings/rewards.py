"""Settings of the sources that a reward is made of."""

import contextlib
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from oger_recipe.base.ranges import SHARE, WEIGHT
from oger_recipe.rewards.compose import ON_ERROR
from oger_recipe.rewards.kinds import kind_of
from oger_recipe.rewards.kinds.entries import DEFAULT, as_today
from oger_recipe.rewards.spec import Keys
from oger_recipe.settings.fields import FREE, Need, Section, setting


def named_source(item: Any) -> dict[str, Any]:
    """Read one entry of oger.reward.sources; raise ArgumentTypeError for what is none."""
    if not isinstance(item, Mapping) or not all(isinstance(item.get(key), str) for key in ("name", "kind")):
        raise ArgumentTypeError("a list of mappings with a name and a kind, such as [{name: rule, kind: verifier}]")
    entry = as_today(item)
    for key in ("weight", "worst"):
        if isinstance(entry.get(key), str):  # YAML reads 1e-3 as a text
            with contextlib.suppress(ValueError):
                entry[key] = float(entry[key])
    return entry


@dataclass(frozen=True)
class RewardSettings(Section):
    title: ClassVar[str] = "oger.reward"
    about: ClassVar[str] = "the sources that make up the reward"
    prefix: ClassVar[str] = "reward."

    sources: tuple[Mapping[str, Any], ...] = setting(
        (),
        "sources of the reward: a list of mappings with name and kind; on the command line a JSON list (default: "
        "the verifier, and the exploration bonus on top)",
        read=named_source,
    )
    on_error: str = setting(
        "zero",
        "what to do when a source fails and the answer is not the cause: give it the value 0 (zero), leave it "
        "out for the row (neutral), give the group no advantage in this step (drop_group), or stop the run "
        "(stop, at any failure). A failure that the answer causes gets the source's worst value",
        choices=ON_ERROR,
    )
    max_error_rate: float = setting(
        0.5,
        "stop the run, before it trains on the step, when a source failed on more than this share of the rows it "
        "was asked about (1: never). Rows too long for its model do not count; steps with fewer than 8 rows "
        "count together; the verifier has oger.max_reward_error_rate",
        range=SHARE,
        needs=Need(
            "a source besides verifier and bonus (oger.reward.sources)",
            lambda oger, value: any(not (kind.is_rule or kind.is_bonus) for kind in oger.reward.kinds),
        ),
    )
    engine_memory_gb: float | None = setting(
        None,
        "main memory (GiB) that engines of reward models may keep between their turns on a machine without CUDA, "
        "where they cannot sleep; 0: shut each down after its turn (default: from its second turn on each stays "
        "loaded while a quarter of the machine's memory is free)",
        range=WEIGHT,
        needs=Need(
            "a model in an engine (oger.reward.sources, oger.grade_model)",
            lambda oger, value: any(keys.runs_on == "engine" for _, keys in oger.models),
        ),
    )
    cache: str = setting(
        "~/.cache/oger/verdicts",
        "cache folder for replies of judges and heads, shared by runs; empty: no cache",
        needs=Need("a source that asks a model (oger.reward.sources)", lambda oger, value: oger.reward.asks_models),
        resume=FREE,
    )

    @property
    def kinds(self) -> list[type[Keys]]:
        """The kinds of the listed sources, or of the default ones."""
        if not self.sources:
            return [type(spec.keys) for spec in DEFAULT]
        return [kind for entry in self.sources if (kind := kind_of(entry)) is not None]

    @property
    def reads_rows(self) -> bool:
        """Whether a source reads the question and the data's further columns."""
        return any(kind.reads_rows for kind in self.kinds)

    @property
    def reads_steps(self) -> bool:
        """Whether a source reads the steps of reasoning of responses."""
        return any(kind.reads_steps for kind in self.kinds)

    @property
    def asks_models(self) -> bool:
        """Whether a source asks a judge or a head."""
        return any(kind.asks_models for kind in self.kinds)
