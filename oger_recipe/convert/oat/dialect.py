"""The commands of OAT and Understand-R1-Zero: ``python -m oat.experiment.run_ppo --gpus 8 ...`` and others."""

import re

from oger_recipe.convert import options
from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.oat import rules
from oger_recipe.convert.oat.commands import COUNTDOWN, PPO, R1_ZERO
from oger_recipe.convert.oat.flags import SECTIONS
from oger_recipe.convert.values import UNSET, Flag

_NAMES = "|".join(name[2:].replace("_", "[-_]") for section in SECTIONS.values() for name in (f.name for f in section))


def _left_out(flag: Flag) -> str:
    newest, page = (flag.left_out({"program": name}.get) for name in ("run_math_rl", "run_ppo"))
    words = ["on" if value is True else "off" if value is False else str(value) for value in (newest, page)]
    return words[0] if words[0] == words[1] else f"{words[0]}; page: {words[1]}"


_DEFAULTS = {
    flag.name: _left_out(flag)
    for flags in SECTIONS.values()
    for flag in flags
    if flag.default not in (UNSET, None, "")
}

OAT = Dialect(
    name="oat",
    trainer="OAT",
    program=", ".join(rules.PROGRAMS),
    command=re.compile(
        r"(?<![\w-])(?P<program>(?<=\boat\.experiment\.)(?:run_ppo|run_math_rl)"
        rf"|(?:{'|'.join(rules.PROGRAMS)})(?=\.py))(?:\.py)?(?=\s|$)"
    ),
    stray=re.compile(rf"\s*--(?:no[-_])?(?:{_NAMES})(?:[\s=]|$)"),
    read=options.tyro_reader(SECTIONS),
    value=lambda text, kind: None if text == "None" else options.parse(text, kind),
    sections=SECTIONS,
    environment=(),
    always={"oger.max_replace_num": 0, "oger.bonus_weight": 0.0},
    to_do=rules.short_horizon,
    differing=rules.differing,
    page="oat_flags.md",
    introduction="""# OAT's flags and ours

Every flag of OAT's programs for reinforcement learning with rules (`run_ppo`, `run_math_rl`, `r1_zero_math`,
`r1_zero_countdown`) and of Understand-R1-Zero's `train_zero_math`, which is built on OAT. This page is written from
the table by which `oger convert` reads their commands: `oger convert --table oat > docs/oat_flags.md`.

The second column has OAT's default, which `oger convert` carries over where a flag is not given; "page" is that of the
time when OAT's page of reasoning examples was written, for the page's two programs. The next three columns have the
values of the page's two commands and of the first one of Understand-R1-Zero. "alone" means: any other value is
refused, with what to do instead. In names `-` and `_` are the same, and `--no-NAME` turns a switch off.

The recipes `configs/oat_gsm8k_ppo.yaml` and `configs/oat_countdown_grpo.yaml` are the page's two commands, each with a
twin for one CPU machine (`..._cpu.yaml`). The newest OAT does not start the PPO command any more: the `gsm8k` oracle
and one flag are gone.
""",
    published={
        "left out": _DEFAULTS,
        "PPO on GSM8K": PPO,
        "GRPO on Countdown": COUNTDOWN,
        "R1-Zero on MATH": R1_ZERO,
    },
    common_prefix="--",
)
