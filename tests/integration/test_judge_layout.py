"""What is counted and refused of reward models in engines of the run's own, and of an encoder with a GPU."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hang import HANG_S
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from oger_recipe.checks.machine import gpus_by_role, machine_problems
from oger_recipe.checks.model_loading import problems_of
from oger_recipe.checks.settings import recipe_problems
from oger_recipe.lab.known_judges import save_prm
from oger_recipe.models.keys import ModelKeys, ProcessKeys, WriterKeys
from oger_recipe.pipeline.driver.deaths import Processes
from oger_recipe.pipeline.judges.judge_actor import JudgeActor
from oger_recipe.report.console import PHASES
from oger_recipe.rewards.kinds.classifier import ClassifierKeys
from oger_recipe.run_folder import worker_logs

JUDGE = {"name": "rider", "kind": "judge", "model": "org/judge", "plugin": "binary", "tensor_parallel_size": 4}
HEAD = {"name": "style", "kind": "classifier", "model": "org/head", "tensor_parallel_size": 2}
SERVED = {"name": "served", "kind": "judge", "model": "m", "plugin": "binary", "url": "http://127.0.0.1:1/v1"}
RULE = {"name": "rule", "kind": "verifier"}
SHARED = {"train.colocate_all": True, "vllm.enable_sleep": True, "actor.num_gpus_per_node": 4, "vllm.num_engines": 4}


def settings(parser: argparse.ArgumentParser, *entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return vars(parser.parse_args([])) | {"oger.reward.sources": (RULE, *entries)} | changes


@pytest.mark.parametrize(
    ("entries", "changes", "expected"),
    [
        ([JUDGE, HEAD, SERVED], {}, {"judges": 4}),  # one at a time: as many as the largest needs
        ([HEAD], {}, {"judges": 2}),
        ([SERVED, JUDGE | {"place": "in_process", "tensor_parallel_size": 1}], {}, {}),
        ([JUDGE | {"gpu_memory_utilization": 7}], {}, {}),  # which is refused elsewhere
        ([{"name": "c", "kind": "critique_classifier", "model": "a", "critic": "b"}], {}, {"judges": 1}),
        ([], {"oger.embedding_num_gpus": 0.25}, {}),  # nothing is compared: there is no encoder
        ([{"name": "near", "kind": "similarity"}], {"oger.embedding_num_gpus": 0.25}, {"encoder": 1}),
    ],
)
def test_engines_and_encoder_have_gpus_of_their_own(parser, entries, changes, expected) -> None:
    changes = {"oger.max_replace_num": 0, "oger.bonus_weight": 0.0} | changes
    asked = gpus_by_role(settings(parser, *entries, **changes))
    assert asked == {"actor": 1, "vLLM engines": 1} | expected
    assert gpus_by_role(settings(parser, *entries, **changes, **SHARED)) == {"actor": 4}


def test_a_machine_with_too_few_gpus_is_refused(parser) -> None:
    value = settings(parser, JUDGE, **{"train.colocate_all": False})
    (problem,) = machine_problems(value, cpu=False, gpus_here=5)
    assert problem.startswith("actor 1 + vLLM engines 1 + judges 4 = 6 GPUs are needed, but 5 are declared")
    assert machine_problems(value, cpu=False, gpus_here=6) == []
    assert len(machine_problems(value, cpu=False, gpus_here=0)) == 1


@pytest.mark.parametrize(
    ("cpu", "entries", "changes", "sentence"),
    [
        (True, [HEAD], {}, "style: tensor_parallel_size 2 is not supported on a machine without CUDA"),
        (False, [HEAD], {"oger.reward.engine_memory_gb": 1.0}, "oger.reward.engine_memory_gb is for machines without"),
        (False, [JUDGE | {"tensor_parallel_size": 5}], SHARED, "tensor_parallel_size 5 is more than the policy's 4"),
        (
            False,
            [HEAD | {"gpu_memory_utilization": 0.6}],
            SHARED | {"vllm.enable_sleep": False, "vllm.gpu_memory_utilization": 0.5},
            "style: gpu_memory_utilization 0.6 and vllm.gpu_memory_utilization 0.5 exceed the GPU",
        ),
        (
            False,
            [{"name": "near", "kind": "similarity"}],
            SHARED | {"oger.embedding_num_gpus": 0.5},
            "oger.embedding_num_gpus 0.5: with train.colocate_all the encoder shares a GPU with the policy",
        ),
    ],
)
def test_what_a_machine_cannot_do_is_refused(parser, cpu, entries, changes, sentence) -> None:
    (problem,) = machine_problems(settings(parser, *entries, **changes), cpu=cpu, gpus_here=64)
    assert sentence in problem


def test_shares_that_fit_are_not_refused(parser) -> None:
    asleep = settings(parser, JUDGE, **SHARED, **{"vllm.gpu_memory_utilization": 0.9})
    awake = SHARED | {"vllm.enable_sleep": False, "vllm.gpu_memory_utilization": 0.2, "oger.embedding_num_gpus": 0.1}
    assert machine_problems(asleep, cpu=False, gpus_here=4) == []
    assert machine_problems(settings(parser, JUDGE, **awake), cpu=False, gpus_here=4) == []
    alone = settings(parser, HEAD | {"gpu_memory_utilization": 0.9}, **{"vllm.gpu_memory_utilization": 0.9})
    assert machine_problems(alone, cpu=False, gpus_here=64) == []  # GPUs of its own
    nothing_embeds = SHARED | {"oger.embedding_num_gpus": 0.5, "oger.max_replace_num": 0, "oger.bonus_weight": 0.0}
    assert machine_problems(settings(parser, **nothing_embeds), cpu=False, gpus_here=64) == []
    assert machine_problems(settings(parser, HEAD | {"tensor_parallel_size": 1}), cpu=True, gpus_here=None) == []


def test_a_model_that_is_not_there_is_the_recipes_mistake(parser, tmp_path: Path) -> None:
    entries = [JUDGE | {"model": str(tmp_path)}, HEAD | {"tokenizer": str(tmp_path / "none")}]
    encoder = {"oger.embedding_num_gpus": 1.0, "oger.embedding_layers": 0, "oger.embedding_url": "u"}
    said = recipe_problems(settings(parser, *entries, **encoder))
    assert f"oger.reward.sources, rider: {tmp_path} is not a model folder: it has no config.json" in said
    assert f"oger.reward.sources, style: {tmp_path / 'none'}: no such model folder" in said
    for name in ("num_gpus", "layers"):
        assert f"oger.embedding_{name} is for an encoder in the run, but oger.embedding_url is set: choose one" in said


def test_a_reranker_goes_with_everything_but_what_needs_embeddings(parser) -> None:
    reranker = {"oger.similarity_reranker": "a/model"}
    centred = {"oger.similarity_centred": True}
    assert not [each for each in recipe_problems(settings(parser, **reranker)) if "reranker" in each]
    assert [each for each in recipe_problems(settings(parser, **reranker, **centred)) if "reranker" in each]
    assert not [each for each in recipe_problems(settings(parser, **centred)) if "similarity" in each]


def test_code_that_a_judge_brings_is_not_run_unasked(parser, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModel": "mine.Model"}}')
    value = settings(parser, HEAD | {"model": str(tmp_path)})
    (said,) = [problem for problem in recipe_problems(value) if "brings code" in problem]
    assert said.startswith(f"oger.reward.sources, style: {tmp_path} brings code of its own")
    trusted = recipe_problems(value | {"oger.trust_remote_code": True})
    assert not [problem for problem in trusted if "brings code" in problem]


def test_vllm_says_before_anything_is_loaded_what_a_model_cannot_do(
    policy_folder: Path, letters: Any, tmp_path: Path
) -> None:
    """One process is asked about all; its answers are in the order of the models."""
    head, unknown = tmp_path / "head", tmp_path / "unknown"
    config = Qwen3Config.from_pretrained(policy_folder, num_labels=1)
    Qwen3ForSequenceClassification(config).save_pretrained(head)
    letters.save_pretrained(head)
    unknown.mkdir()
    (unknown / "config.json").write_text('{"model_type": "qwen3", "architectures": ["NobodysModel"]}')
    policy = str(policy_folder)
    writes, labels = (save_prm(tmp_path / name, tag="ки", head=name == "labels") for name in ("writes", "labels"))
    tags, heads = ({"format": form} for form in ("math_shepherd", "trl"))
    problems = problems_of(
        [
            WriterKeys(model=policy), WriterKeys(model=str(head)), ClassifierKeys(model=policy),
            ClassifierKeys(model=str(head)), WriterKeys(model=str(unknown)),
            WriterKeys(model=policy, max_model_len=10**6),
            ProcessKeys(model=str(writes), **tags), ProcessKeys(model=str(labels), **heads),
            ProcessKeys(model=str(labels), **tags), ProcessKeys(model=str(writes), **heads),
            ProcessKeys(model=str(labels), good_label=2, **heads),
            ProcessKeys(model=str(writes), good="fine", **tags),
        ],
        cpu=True,
    )  # fmt: skip
    assert problems[0] is None and problems[3] is None
    assert problems[1] == f"{head} is a Qwen3ForSequenceClassification: it does not write, as a judge must"
    assert problems[2] == f"{policy} is a Qwen3ForCausalLM: it has no head that gives a number"
    assert "NobodysModel" in str(problems[4]) and str(problems[4]).startswith(f"vLLM cannot load {unknown}: ")
    assert "max_model_len (1000000)" in str(problems[5])
    assert problems[6:8] == [None, None]
    label = f"{labels} is a LlamaForTokenClassification"
    assert problems[8] == f"{label}: it does not write, which scorer step_tag needs; is it a token_head?"
    assert problems[9] == (
        f"{writes} is a LlamaForCausalLM: it has no head that gives tokens labels, which scorer token_head needs; is "
        "it a step_tag?"
    )
    assert problems[10] == f"{label} with 2 labels, from 0: good_label 2 is none of them"
    assert f"good 'fine' is 4 tokens of {writes}, and must be one" in str(problems[11])


def test_a_prompt_that_a_template_began_is_not_begun_twice(letters: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = type(letters)(tokenizer_object=letters.backend_tokenizer, bos_token="<think>")
    begin = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<think> $A", special_tokens=[("<think>", begin)])
    actor = JudgeActor(ModelKeys(model="m"), share=0.1, bundles=None)
    actor._tokenizer, actor._longest = tokenizer, 4
    assert actor._tokens("ab") == actor._tokens("<think>ab") == [begin, *actor._tokens("ab")[1:]]
    actor._require_room(actor._tokens("ab"), room=1)
    with pytest.raises(ValueError, match="the prompt has 4 tokens, and m reads 4 in all"):
        actor._require_room(actor._tokens("abc"), room=1)


def test_engines_of_one_run_share_a_log(tmp_path: Path) -> None:
    for pid in (4, 30):
        (tmp_path / f"worker-ab{pid}-01000000-{pid}.out").write_text(f":actor_name:JudgeActor\nwords of {pid}\n")
    target = tmp_path / "logs"
    target.mkdir()
    worker_logs.keep(tmp_path, target)
    assert {path.name for path in target.iterdir()} == {"judge.log", "raylet.log", "gcs.log"}
    kept = (target / "judge.log").read_text()
    assert "words of 4\n" in kept and "words of 30\n" in kept


def test_an_engine_whose_turn_is_over_is_no_death(tmp_path: Path) -> None:
    """By its title it is a judge's process; the run has ended it, and something else has gone wrong."""
    judge = subprocess.Popen(["ray::JudgeActor.generate", "60"], executable="/bin/sleep")
    policy = subprocess.Popen(["ray::OgerPolicyModelActor.fit", "60"], executable="/bin/sleep")
    with Processes(os.getpid()) as processes:
        deadline = time.monotonic() + HANG_S
        while len(processes._seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in (judge, policy):
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert processes.gone() == [policy.pid]


def test_a_wait_for_judges_says_how_far_they_are() -> None:
    assert PHASES["judges"].format(model="org/judge", done=3, of=8) == "3 of 8 replies of org/judge"
    assert PHASES["loading"].format(model="org/judge", done=0, of=0) == "loading org/judge"
