"""The commands of VeRL-with-RMs: ``python3 -m verl.trainer.main_ppo ... reward_model.reward_function=[...] ...``."""

import re

from oger_recipe.convert import hydra
from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.verl_rms.commands import MULTI_NODE, SINGLE_NODE
from oger_recipe.convert.verl_rms.flags import ENVIRONMENT, SECTIONS

# verl's own command has the same program and none of these.
_OWN = "reward_function|reward_combine_func|reward_weight|reward_model_type|reward_vllm_rollout|use_bge|bge_weight"

VERL_RMS = Dialect(
    name="verl_rms",
    trainer="VeRL-with-RMs",
    program="verl.trainer.main_ppo with reward_model.reward_function",
    command=re.compile(rf"(?:-m\s+|/)[\w./]*\bmain_ppo(?:\.py)?\b(?=.*\breward_model\.(?:{_OWN})\b)", re.DOTALL),
    stray=hydra.stray(
        (
            *("actor_rollout_ref", "algorithm", "critic", "custom_reward_function"),
            *("data", "ray_init", "reward_model", "trainer"),
        )
    ),
    read=hydra.read_overrides,
    value=hydra.parse,
    sections=SECTIONS,
    environment=ENVIRONMENT,
    lines=(
        (
            re.compile(r"python\d?\s+\S*bge_sim\.py"),
            "bge_sim.py is not needed: the source `similar` asks the run's own encoder (oger.embedding_model)",
        ),
        (
            re.compile(r"\bray\s+start\b"),
            "`oger train` starts Ray itself on one machine; over several, run scripts/ray/train_oger.sh on each, "
            "with the same NODE_RANK, NNODES and MASTER_ADDR (docs/clusters.md)",
        ),
        (
            re.compile(r"\bray\s+job\s+submit\b"),
            "`oger train` is not submitted as a job: scripts/ray/train_oger.sh runs it on node 0; OGER_WORKING_DIR "
            "and OGER_EXCLUDES are its working_dir and excludes",
        ),
        (
            re.compile(r"^\s*(?:source|\.)\s+\S"),
            "a sourced file is not read: export what training needs of it where `oger train` starts, and give what "
            "the command needs with --set NAME=VALUE",
        ),
    ),
    always={"oger.max_replace_num": 0},
    to_do=lambda get: (
        "copy the files of reward_model.reward_function (verl/workers/reward_function/*.py) beside the recipe: they "
        "are the plugins of its judges",
    ),
    differing=lambda get: {
        "judges": "they are asked about the rows whose gate is open; there also about rows with another rule's score "
        "than 0, and what they say of these is thrown away. A judge that fails costs the worst "
        "verdict, where an answer brings it about, or what oger.reward.on_error says; there the run ends",
        "use_bge": "there the field Response of an answer in JSON is compared, and an answer without the fields of "
        "that task gets 0; here whole answers are compared. 0.3 + 0.7 x the curve is the same curve from 0.37",
    },
    page="verl_rms_flags.md",
    introduction="""# VeRL-with-RMs' flags and ours

Every flag of the two commands that VeRL-with-RMs' page shows, and of its configuration: a branch of verl 0.4 that adds
judges and a similarity to a rule's reward. This page is written from the table by which `oger convert` reads these
commands: `oger convert --table verl_rms > docs/verl_rms_flags.md`.

Where the second and third column are empty, the flag stays at its default there, which `oger convert` carries over as
well. Flags without a counterpart say why none is needed. "alone" means: any other value is refused, with what to do
instead. What several flags say of rewards becomes one list, `oger.reward.sources`, in the order in which they are
added there: the rule, the similarity (on by default there), the judges. [rewards.md](rewards.md) explains the list.
""",
    published={"single-node command": SINGLE_NODE, "multi-node command": MULTI_NODE},
    common_prefix="actor_rollout_ref.",
)
