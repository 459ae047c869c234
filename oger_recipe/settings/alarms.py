"""Settings of the alarms: what they compare, and what a run does when one is raised."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Self

from oger_recipe.algorithm.alarms import ALARMS, LEVELS, WARN
from oger_recipe.base.ranges import COUNT
from oger_recipe.settings.fields import FREE, OWN, Section, Setting

_WINDOW = f"{OWN}alarms.window"


@dataclass(frozen=True)
class AlarmSettings(Section):
    """The window of all alarms, and the level of each by its name: the registry says which there are."""

    title: ClassVar[str] = "oger.alarms"
    about: ClassVar[str] = "what to do when training goes wrong (warn, stop or off), and over which steps"
    prefix: ClassVar[str] = "alarms."

    levels: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(ALARMS, WARN), hash=False)
    window: int = 10

    @classmethod
    def of(cls, settings: Mapping[str, Any] | SimpleNamespace) -> Self:
        if isinstance(settings, Mapping):
            return cls({name: settings[f"{OWN}{cls.prefix}{name}"] for name in ALARMS}, settings[_WINDOW])
        return cls({name: getattr(settings.alarms, name) for name in ALARMS}, settings.alarms.window)

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        window = Setting(
            flag=_WINDOW,
            default=cls.window,
            help="steps that make up a window: alarms compare the newest with the first or the best one, and the "
            "metrics of what a source follows are taken over one",
            read=int,
            choices=None,
            range=COUNT,
        )
        levels = (
            Setting(
                flag=f"{OWN}{cls.prefix}{name}",
                default=WARN,
                help=f"when {alarm.when} (docs/alarms.md)",
                read=str,
                choices=LEVELS,
                resume=FREE,
            )
            for name, alarm in ALARMS.items()
        )
        return window, *levels
