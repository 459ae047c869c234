"""What a setting is: a field of a frozen dataclass that carries all that is declared of it.

The dataclasses beside this file are the one place where the recipe's own settings are declared, upstream.py the one
for OpenRLHF's. The parser, the checks of single values, the notes on settings without effect, what a resumed run may
change, ``oger train --help`` and docs/settings.md are made from them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from oger_recipe.base.ranges import Range

OWN = "oger."  # what the recipe's own flags begin with

# Why a resumed run has to keep a setting; FREE: it may change it, and nothing is said.
FREE = ""
OF_OPTIMIZER = "the checkpoint holds the optimizer and its schedule; another value would have no effect"
OF_STEPS = "the steps would have another size than the steps before"
OF_DATA = "the position in the data is counted in prompts"
OF_LENGTHS = f"other prompts would be left out, and {OF_DATA}"
OF_WEIGHTS = "the checkpoint holds the weights"


@dataclass(frozen=True)
class Need:
    """What gives a setting an effect.

    holds: whether it is there, of the run's OgerSettings and of all its settings by flag.
    """

    text: str
    holds: Callable[[Any, Mapping[str, Any]], bool]


def need(flag: str, *choices: str) -> Need:
    """Make the need for one of these choices of another setting; without choices for any value but none, 0 and off."""
    if choices:
        return Need(f"{flag} {either(choices)}", lambda oger, value: value[flag] in choices)
    return Need(flag, lambda oger, value: bool(value[flag]))


def need_reader(flag: str, name: str, registry: Mapping[str, Any]) -> Need:
    """Make the need for a choice of ``flag`` whose entry in the registry reads the setting ``name``."""
    return need(flag, *(choice for choice, entry in registry.items() if name in entry.reads))


def either(names: Collection[str]) -> str:
    """Write names as a list: a, b or c."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


class OrOwn(tuple[str, ...]):
    """The names of a registry, and any import path of a function of the user's own (settings/own_functions.py)."""

    @classmethod
    def of(cls, registry: Iterable[str]) -> Self:
        return cls((*registry, "module:name"))

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (isinstance(value, str) and ":" in value)


def setting(
    default: Any,
    help: str,
    *,
    range: Range | None = None,
    choices: Collection[str] | None = None,
    read: Callable[[Any], Any] | None = None,
    needs: Need | tuple[Need, ...] = (),
    resume: str | None = None,
) -> Any:
    """Declare a field of a section. Every number has a range.

    choices: the registry whose names are the choices; read: makes the value, or an item of it, from what a file or a
    command line has, and raises ArgumentTypeError (default: the field's type); needs, resume: see `Rules` (resume's
    default: the section's).
    """
    needs = (needs,) if isinstance(needs, Need) else needs
    known = {"help": help, "range": range, "choices": choices, "read": read, "needs": needs, "resume": resume}
    return field(default=default, metadata=known)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What holds for a setting, the recipe's own or OpenRLHF's.

    needs: where one of them is missing it has no effect; resume: why a resumed run has to keep it, FREE, or None: a
    run follows another value, with a note.
    """

    range: Range | None = None
    needs: tuple[Need, ...] = ()
    resume: str | None = None


@dataclass(frozen=True, kw_only=True)
class Setting(Rules):
    """A field as the parser, the checks and the pages see it. ``read``: its type, or what makes a value from text;
    ``many``: the value is a tuple of such items."""

    flag: str  # without dashes: oger.sft.lr
    default: Any
    help: str
    read: Callable[[Any], Any]
    many: bool = False
    choices: Collection[str] | None

    @property
    def name(self) -> str:
        """The name in a recipe file, below ``oger:``."""
        return self.flag.removeprefix(OWN)


@dataclass(frozen=True)
class Section:
    """The settings of one concern.

    title, about: its name and line in ``oger train --help``; prefix: what its flags have behind ``oger.``; resume: for
    fields that declare none.
    """

    title: ClassVar[str]
    about: ClassVar[str]
    prefix: ClassVar[str] = ""
    resume: ClassVar[str | None] = None

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
            known = dict(each.metadata)
            known["read"] = known["read"] or kind
            known["resume"] = cls.resume if known["resume"] is None else known["resume"]
            found.append(Setting(flag=f"{OWN}{cls.prefix}{each.name}", default=each.default, many=many, **known))
        return tuple(found)


def _item_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of a value or its items, and whether it is a tuple: ``int | None``, ``tuple[int, ...]``."""
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return (get_args(hint)[0], True) if get_origin(hint) is tuple else (hint, False)
