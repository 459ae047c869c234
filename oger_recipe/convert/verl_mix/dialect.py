"""The commands of OGER, LUFFY, ExGRPO and HPT: ``python3 -m verl.mix_src.main_mix_ppo data.train_files=... ...``."""

import re

from oger_recipe.convert import hydra
from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.verl_mix.flags import ENVIRONMENT, PUBLISHED, SECTIONS

VERL_MIX = Dialect(
    name="verl_mix",
    trainer="verl.mix_src",
    program="verl.mix_src.main_mix_ppo",
    command=re.compile(r"(?:-m\s+|/)[\w./]*main_mix_ppo\b"),
    stray=hydra.stray(("actor_rollout_ref", "algorithm", "critic", "data", "reward_model", "trainer")),
    read=hydra.read_overrides,
    value=hydra.parse,
    sections=SECTIONS,
    environment=ENVIRONMENT,
    page="oger_flags.md",
    introduction="""# OGER's and LUFFY's flags and ours

Every flag of OGER's training command and of LUFFY's configuration (`verl.mix_src`), on which OGER's code builds, and
what ExGRPO and HPT add to it. This page is written from the table by which `oger convert` reads commands:
`oger convert --table > docs/oger_flags.md`.

The second column has the values of the command that OGER's page publishes; where it is empty, the flag stays at its
default there, which `oger convert` carries over as well. Flags without a counterpart say why none is needed. "alone"
means: any other value is refused, with what to do instead. What OGER adds to LUFFY's flags has no public
documentation; "read from its name" marks what rests on the name alone.
""",
    published={"in OGER's command": PUBLISHED},
    common_prefix="actor_rollout_ref.",
)
