"""What a setting is: a field of a frozen dataclass that carries its default, meaning, choices and range.

The dataclasses beside this file are the one place where the recipe's own settings are declared. The parser, the checks
of single values, ``oger train --help`` and docs/settings.md are made from their fields.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from oger_recipe.base.ranges import Range

OWN = "oger."  # what the recipe's own flags begin with


def setting(
    default: Any,
    help: str,
    *,
    range: Range | None = None,
    choices: Collection[str] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a field of a section. Every number has a range.

    choices: the registry whose names are the choices; read: makes the value, or an item of it, from what a file or a
    command line has, and raises ArgumentTypeError (default: the field's type).
    """
    return field(default=default, metadata={"help": help, "range": range, "choices": choices, "read": read})


@dataclass(frozen=True)
class Setting:
    """A field as the parser, the checks and the pages see it. ``read``: its type, or what makes a value from text;
    ``many``: the value is a tuple of such items."""

    flag: str  # without dashes: oger.sft.lr
    default: Any
    help: str
    read: Callable[[Any], Any]
    many: bool
    choices: Collection[str] | None
    range: Range | None

    @property
    def name(self) -> str:
        """The name in a recipe file, below ``oger:``."""
        return self.flag.removeprefix(OWN)


@dataclass(frozen=True)
class Section:
    """The settings of one concern.

    title, about: its name and line in ``oger train --help``; prefix: what its flags have behind ``oger.``.
    """

    title: ClassVar[str]
    about: ClassVar[str]
    prefix: ClassVar[str] = ""

    @classmethod
    def of(cls, settings: Mapping[str, Any] | SimpleNamespace) -> Self:
        """Read all settings of a run by flag (``oger.sft.lr``), or OpenRLHF's nested namespace ``args.oger``."""
        if isinstance(settings, Mapping):
            return cls(**{each.name: settings[f"{OWN}{cls.prefix}{each.name}"] for each in fields(cls)})
        section = getattr(settings, cls.prefix.removesuffix(".")) if cls.prefix else settings
        return cls(**{each.name: getattr(section, each.name) for each in fields(cls)})

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """Return the fields, in their order."""
        hints = get_type_hints(cls)
        found = []
        for each in fields(cls):
            kind, many = _item_type(hints[each.name])
            known = each.metadata
            read = known["read"] or kind
            found.append(
                Setting(f"{OWN}{cls.prefix}{each.name}", each.default, known["help"], read, many, known["choices"],
                        known["range"])
            )  # fmt: skip
        return tuple(found)


def _item_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of a value or its items, and whether it is a tuple: ``int | None``, ``tuple[int, ...]``."""
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return (get_args(hint)[0], True) if get_origin(hint) is tuple else (hint, False)
