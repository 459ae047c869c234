"""The check of every single number: it is in its range."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from oger_recipe.ranges import Range
from oger_recipe.settings import upstream
from oger_recipe.settings.oger import SETTINGS

RANGES: dict[str, Range] = upstream.RANGES | {each.flag: each.range for each in SETTINGS if each.range}


def out_of_range(value: Mapping[str, Any], where: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield a sentence for every number of ``value``, settings by flag, that is not in its range.

    ``where``: the place in a file where a flag is set, named in the sentence.
    """
    places = {key: f" ({place})" for key, place in (where or {}).items()}
    for key, setting in value.items():
        for number in setting if isinstance(setting, list | tuple) else [setting]:
            allowed = RANGES.get(key)
            if allowed is None or number is None or number in allowed:
                continue
            text = allowed.text if math.isfinite(number) else "a finite number"
            yield f"{key} is {number}: it has to be {text}{places.get(key, '')}"
    for key in upstream.ORDERED:
        pair = value[key]
        if pair and len(pair) == 2 and pair[0] > pair[1]:
            yield f"{key} is {pair[0]} {pair[1]}: the first is the smaller one{places.get(key, '')}"
