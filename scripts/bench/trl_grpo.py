"""Runs TRL's GRPOTrainer with HF generate on data and policy of a run of the recipe: one side of throughput.py.

Arguments: a JSON object with model, data, out, prompts, group, max_new_tokens, micro_batch, steps. Writes the time
after every step to ``out``. TRL's defaults stay, except where both sides must do the same.
"""

import json
import sys
import time
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from oger_recipe.grading.verifiers import verify


class Clock(TrainerCallback):
    def __init__(self, out: Path) -> None:
        self.out, self.times = out, []

    def on_train_begin(self, *args, **kwargs) -> None:
        self.times.append(time.time())

    def on_step_end(self, *args, **kwargs) -> None:
        self.times.append(time.time())
        self.out.write_text(json.dumps(self.times))


def reward(completions: list[str], answer: list[str], **_) -> list[float]:
    return [verify("countdown", text, truth).score for text, truth in zip(completions, answer, strict=True)]


def main() -> None:
    job = json.loads(sys.argv[1])
    rows = [json.loads(line) for line in Path(job["data"]).read_text().splitlines()]
    data = Dataset.from_list([{"prompt": row["prompt"], "answer": json.loads(row["label"])["answer"]} for row in rows])
    batch = job["prompts"] * job["group"]
    config = GRPOConfig(
        output_dir=str(Path(job["out"]).with_suffix("")),
        use_cpu=True,
        learning_rate=1e-12,
        num_generations=job["group"],
        generation_batch_size=batch,
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=batch // job["micro_batch"],
        max_completion_length=job["max_new_tokens"],
        max_steps=job["steps"],
        temperature=1.0,
        gradient_checkpointing=False,  # its default saves memory that policies of this size do not need
        report_to="none",
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        reward_funcs=reward,
        args=config,
        train_dataset=data,
        callbacks=[Clock(Path(job["out"]))],
    )
    trainer.train()


if __name__ == "__main__":
    main()
