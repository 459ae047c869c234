"""The command of OpenR: ``python -u train_math.py --algorithm_name APPO --prm_model_name_or_path ... ...``."""

import re

from oger_recipe.convert import options
from oger_recipe.convert.dialect import Dialect
from oger_recipe.convert.openr import rules
from oger_recipe.convert.openr.flags import ENVIRONMENT, SECTIONS
from oger_recipe.convert.values import UNSET

# The page's own command.
PUBLISHED: dict[str, str] = {
    "--dataset_path": "./math_500.jsonl",
    "--model_name_or_path": "./Qwen2.5-Math-1.5B",
    "--prm_model_name_or_path": "./Qwen2.5-Math-7B-Instruct",
    "--algorithm_name": "APPO",
    "--num_mini_batch": "4",
    "--ppo_epoch": "1",
}
_DEFAULTS = {
    flag.name: "off" if flag.default is False else "on" if flag.default is True else str(flag.default)
    for flags in SECTIONS.values()
    for flag in flags
    if flag.default not in (UNSET, None, "")
}
_NAMES = "|".join(flag.name for flags in SECTIONS.values() for flag in flags)

OPENR = Dialect(
    name="openr",
    trainer="OpenR",
    program="train_math.py",
    command=re.compile(r"(?<![\w.-])(?:[\w.-]*/)*train_math\.py\b"),
    stray=re.compile(rf"\s*(?:{_NAMES})(?:[\s=]|$)"),
    read=options.reader(SECTIONS),
    value=options.parse,
    sections=SECTIONS,
    environment=ENVIRONMENT,
    always={
        "oger.max_replace_num": 0,
        "oger.task_name": "math",
        "oger.prompt_template": "steps",
        "oger.steps.delimiters": ["\n"],
        "oger.steps.last_step_text": "answer",
        "oger.steps.sample_by_step": True,
        "oger.top_k": rules.TOP_K,
        "oger.loss_aggregation": "token_mean",
        "oger.kl_stop": 0.02,
        "actor.num_gpus_per_node": 1,
        "actor.adam.betas": list(rules.BETAS),
        "data.input_key": "problem",
        "data.label_key": "final_answer",
        "rollout.temperature": rules.TEMPERATURE,
        "rollout.n_samples_per_prompt": 1,
        "train.colocate_all": True,
        "vllm.enable_sleep": True,
        "vllm.enable_prefix_caching": True,
        "vllm.enforce_eager": True,
        "vllm.gpu_memory_utilization": 0.5,
        "ds.enable_sleep": True,
    },
    to_do=lambda get: (*rules.named_otherwise(get), *rules.held_out(get)),
    differing=lambda get: {
        "steps": "there they end behind five tokens of Qwen's that are or end a line, here behind every line's end, "
        "whatever the vocabulary (oger.steps.delimiter_token_ids takes tokens)",
        "prompt": "one solved example of our own words; there steps have the tag of the process reward model in the "
        "policy's prompt as well",
        "padding": "there it is attended and scored; here it never is",
        "temperature": "there rollouts are sampled at 0.5 and trained as if at 1; here the policy's probabilities are "
        "those at 0.5",
        "responses": "an update has whole responses; there its buffer cuts them after its steps",
        "advantages": "they are standardised over an update, there over each pass of a mini-batch",
        "kl_stop": "an update ends where the KL from its beginning is above 0.02; there such a step of the policy is "
        "left out, and the next one tried",
        "weights": "all of the policy's are trained; there LoRA of rank 8 (here ds.lora.*, not with a critic). The "
        "critic is a head on a copy of the first policy, there on the policy's own weights",
    },
    page="openr_flags.md",
    introduction="""# OpenR's flags and ours

Every flag of OpenR's page on RL training, of its `train/mat/config.py` and of its `train_math.py`. This page is
written from the table by which `oger convert` reads the command: `oger convert --table openr > docs/openr_flags.md`.

The second column has what OpenR runs with where a flag is not given, which `oger convert` carries over; the third has
the values of the command that its page shows. Many of its flags do nothing there: its code sets six of them itself,
and many are left from another project and never read. Here a flag does what its name says, or is refused with the
reason: "refused" means any other value than that of the second column. A switch takes no value: given, it is the
opposite of that column.

A step is a step of reasoning on this page, and an update is what `oger train` calls a step. The recipes are
`configs/openr_math_appo.yaml`, `configs/openr_math_grpo.yaml` and `configs/openr_math_tppo.yaml`;
[from_other_trainers.md](from_other_trainers.md#openr) says what differs from OpenR whatever the flags.
""",
    published={"left out": _DEFAULTS, "in the page's command": PUBLISHED},
    common_prefix="--",
)
