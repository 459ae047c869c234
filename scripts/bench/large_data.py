"""Measures what preparing a large training set takes: peak memory of the process, and seconds.

Makes a file of rows whose teachers have --tokens tokens each, right ones in words without sense, and prepares it as
`oger train` does before it starts anything: read, check, template, tokenise, verify, write. The verifier is gsm8k,
which works in the same process. Peak memory is the resident set, with the libraries and with files that are mapped.
"""

import argparse
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from oger_recipe.cli.train_ppo_ray import build_parser
from oger_recipe.run.inputs import write_data

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
PHRASE = 25  # words that texts share, so that making them is no work
NUMBER = 5  # tokens of "#### 12" with the end of sequence: four marks are four words


def words_of(random_of: random.Random) -> list[str]:
    return sorted({"".join(random_of.choices(LETTERS, k=random_of.randint(2, 6))) for _ in range(8000)})


def make_rows(rows: int, teachers: int, tokens: int) -> Iterator[dict[str, Any]]:
    random_of = random.Random(0)
    words = words_of(random_of)
    phrases = [" ".join(random_of.choices(words, k=PHRASE)) for _ in range(2000)]

    def text(length: int) -> str:
        whole, rest = divmod(length, PHRASE)
        return " ".join([*random_of.choices(phrases, k=whole), *random_of.choices(words, k=rest)])

    for number in range(rows):
        texts = [f"{text(tokens - NUMBER - 1)} # # # # {number}" for _ in range(teachers)]
        yield {"prompt": f"{text(60)} {number}?", "answer": str(number), "teachers": texts}


def make_file(path: Path, rows: int, teachers: int, tokens: int) -> None:
    made = make_rows(rows, teachers, tokens)
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in made)
        return
    batches = []
    while batch := list(islice(made, 1000)):
        batches.append(pa.RecordBatch.from_pylist(batch))
    pa.parquet.write_table(pa.Table.from_batches(batches), path, row_group_size=rows)  # one, as pandas writes it


def make_tokenizer(folder: Path) -> None:
    """One token a word."""
    vocabulary = ["<unknown>", "<end>", "#", "?", *words_of(random.Random(0))]
    model = Tokenizer(WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unknown>"))
    model.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unknown>", eos_token="<end>").save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--teachers", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=500, help="of each teacher")
    parser.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / f"rows.{args.format}"
        sizes = (args.rows, args.teachers, args.tokens)
        maker = multiprocessing.get_context("spawn").Process(target=make_file, args=(path, *sizes))
        maker.start()
        maker.join()
        make_tokenizer(folder / "model")
        flags = [
            f"--data.prompt_dataset={path}", f"--actor.model_name_or_path={folder / 'model'}",
            "--oger.task_name=gsm8k", f"--oger.data_cache={folder / 'cache'}",
            f"--data.max_len={args.tokens + 200}", f"--rollout.max_new_tokens={args.tokens}",
        ]  # fmt: skip
        value = vars(build_parser(cpu=True).parse_args(flags))
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        counts = write_data(value, folder / "run")[2][0]
        seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store = (folder / "run" / "data" / "teachers.arrow").stat().st_size
        assert counts["teachers"] == args.rows * args.teachers, counts
        print("| rows | teachers | tokens of each | file | GB | store GB | seconds | peak GB | of these before |")
        print("|---|---|---|---|---|---|---|---|---|")
        columns = (*sizes, args.format, f"{path.stat().st_size / 1e9:.2f}", f"{store / 1e9:.2f}", f"{seconds:.0f}")
        print("|", " | ".join(map(str, (*columns, f"{peak * 1024 / 1e9:.2f}", f"{before * 1024 / 1e9:.2f}"))), "|")


if __name__ == "__main__":
    main()
