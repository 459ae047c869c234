"""The recipe's own settings on OpenRLHF's parser."""

import argparse
import json
from typing import Any, NoReturn

from oger_recipe.algorithm.credit import BATCH_ESTIMATORS, ESTIMATORS, RIGHT_ESTIMATORS, STEP_ESTIMATORS
from oger_recipe.algorithm.token_stats import KL_ESTIMATORS
from oger_recipe.base.errors import RecipeError
from oger_recipe.base.ranges import NEGATIVE
from oger_recipe.settings.fields import OrOwn, Setting
from oger_recipe.settings.oger import SETTINGS
from oger_recipe.settings.openrlhf_parser import openrlhf_parser
from oger_recipe.settings.upstream import CPU_DEFAULTS, METHOD_DEFAULTS


class ListAction(argparse.Action):
    """``--flag a b``, or one JSON list, ``--flag=["a", "-b"]``, whose items can be any text."""

    def __init__(self, *args: Any, setting: Setting, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.setting = setting

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        items = list(values)
        if len(items) == 1 and items[0].startswith("["):
            try:
                items = json.loads(items[0])
            except ValueError:
                parser.error(f"argument {option_string}: {items[0]!r} is not a JSON list")
        setattr(namespace, self.dest, tuple(self._item(item, parser, option_string) for item in items))

    def _item(self, item: Any, parser: argparse.ArgumentParser, option_string: Any) -> Any:
        try:
            converted = self.setting.read(item)
        except argparse.ArgumentTypeError as what:
            parser.error(f"argument {option_string}: takes {what}, found {item!r}")
        except (TypeError, ValueError):
            parser.error(f"argument {option_string}: {item!r} is not of type {self.setting.read.__name__}")
        if self.setting.choices and converted not in self.setting.choices:
            parser.error(f"argument {option_string}: {item!r} is not one of {', '.join(self.setting.choices)}")
        return converted


def build_parser(*, cpu: bool) -> argparse.ArgumentParser:
    """Make OpenRLHF's parser with the recipe's section and defaults."""
    parser = openrlhf_parser()
    parser.prog = "oger train"
    parser.allow_abbrev = False
    parser.error = _refuse  # type: ignore[method-assign]
    parser._negative_number_matcher = NEGATIVE
    extend_parser(parser, cpu=cpu)
    return parser


def _refuse(message: str) -> NoReturn:
    """Raise RecipeError. argparse's error prints the usage of two hundred flags before the sentence that matters."""
    raise RecipeError(message)


def extend_parser(parser: argparse.ArgumentParser, *, cpu: bool) -> None:
    """Add the recipe's section to OpenRLHF's parser and set the recipe's defaults."""
    group = parser.add_argument_group("OGER recipe")
    for each in SETTINGS:
        kind: dict[str, Any] = {"type": each.read, "choices": each.choices}
        if each.many:
            kind = {"action": ListAction, "nargs": "*", "setting": each}
        elif each.read is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        group.add_argument(f"--{each.flag}", default=each.default, help=each.help.replace("%", "%%"), **kind)
    ours = {
        "algo.advantage.estimator": OrOwn.of((*ESTIMATORS, *RIGHT_ESTIMATORS, *BATCH_ESTIMATORS, *STEP_ESTIMATORS)),
        "algo.kl.estimator": (*KL_ESTIMATORS,),
    }
    for action in parser._actions:
        if action.dest in ours:
            names = dict.fromkeys([*(action.choices or ()), *ours[action.dest]])
            action.choices = type(ours[action.dest])(names)
    _add_opposites(parser)
    parser.set_defaults(**METHOD_DEFAULTS, **(CPU_DEFAULTS if cpu else {}))


def _add_opposites(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-FLAG`` to OpenRLHF's switches, which have none: else nothing could switch off what a recipe sets."""
    for action in [each for each in parser._actions if isinstance(each, argparse._StoreTrueAction)]:
        for name in action.option_strings:
            opposite = f"--no-{name.removeprefix('--')}"
            parser.add_argument(
                opposite, dest=action.dest, action="store_false", default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
