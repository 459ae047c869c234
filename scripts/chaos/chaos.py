"""Chaos: see scripts/chaos.sh."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path

import exact
import table
from attempt import START_LIMIT_S, Attempt, Ended
from plan import CELLS, VICTIMS, Trial, trial
from strike import struck

from oger_recipe.base.files import append_json, read_jsonl
from oger_recipe.run_folder import checkpoints

_RECIPES = Path(__file__).parent
TRIALS = 110  # of the long form
LAST_STEPS = 4  # of a run, which are not struck any more


class Chaos:
    """Strikes runs in a folder, and writes a line for each trial, and another one once its run has resumed."""

    def __init__(self, out: Path, seed: int, references: Path) -> None:
        self.out, self.seed, self.references = out.absolute(), seed, references.absolute()
        self.trials = self.out / "trials.jsonl"
        # The paths of sockets have to be short. The same one in every call: what is left there is found.
        self.temporary = Path(tempfile.gettempdir(), f"c{zlib.crc32(str(self.out).encode()):x}")

    def reference(self, recipe: str) -> exact.Reference:
        """Return what a run does that nobody strikes; made when it is first needed."""
        path = self.references / f"reference_{recipe}.json"
        if known := exact.read(path):
            return known
        print(f"{recipe}: a run that is not struck, to compare with ...", flush=True)
        run_dir = path.with_suffix("")
        with Attempt(_RECIPES / f"{recipe}.yaml", run_dir, self.temporary, "--ckpt.max_num", "1000000") as attempt:
            if not attempt.ended(START_LIMIT_S) or attempt.code:
                sys.exit(attempt.text()[-3000:])
        path.write_text(json.dumps(exact.reference_of(run_dir)))
        shutil.rmtree(run_dir / "checkpoints")
        result: exact.Reference = json.loads(path.read_text())
        return result

    def run(self, one: Trial) -> None:
        """Make a trial in the next attempt at a run, which first shows whether the trials before it left one that
        resumes exactly."""
        recipe = one.victim.recipe
        run_dir, reference = self.out / recipe, self.reference(recipe)
        self._finish_or_go_on(recipe, run_dir, reference)
        with self._attempt(recipe) as attempt:
            step = attempt.resumed_at + 1
            try:
                if one.phase != "start":
                    self._settle(recipe, attempt)
                    step += 1
                record = struck(one, attempt, step, reference["seconds"] | exact.phase_seconds(run_dir))
            except Ended as ended:
                record = {"end": "ended before it was struck", "faults": [str(ended)]}
        record |= {"trial": one.number, "seed": self.seed, "recipe": recipe, "victim": one.victim.name}
        record |= {"phase": one.phase, "moment": round(one.moment, 3), "terminal": attempt.text()[-4000:]}
        differs = exact.differences(run_dir, reference) if run_dir.exists() else []
        record["differs"] = differs[:10]
        if differs and not record.get("told"):
            record["faults"].append(f"the run is not the one that was not struck: {differs[:3]}")
        append_json(self.trials, record)
        print(table.line(record), flush=True)
        if differs:
            # There is nothing to compare any more.
            append_json(self.trials, {"trial": one.number, "resumed": None})
            shutil.rmtree(run_dir)

    def settle(self) -> None:
        """Resume the runs once more, for the verdict on the last trials."""
        for recipe in sorted({each.recipe for each in VICTIMS}):
            if self._waiting(recipe):
                self._finish_or_go_on(recipe, self.out / recipe, self.reference(recipe))
            if self._waiting(recipe):
                with self._attempt(recipe) as attempt:
                    try:
                        self._settle(recipe, attempt)
                    except Ended as ended:
                        self._resumed(recipe, [f"it did not resume: {ended}"], attempt.run_dir, self.reference(recipe))

    def _attempt(self, recipe: str) -> Attempt:
        return Attempt(_RECIPES / f"{recipe}.yaml", self.out / recipe, self.temporary)

    def _settle(self, recipe: str, attempt: Attempt) -> None:
        """Wait until the attempt has trained and saved a step, and compare."""
        attempt.until_saved(attempt.resumed_at + 1)
        self._resumed(recipe, [], attempt.run_dir, self.reference(recipe))

    def _finish_or_go_on(self, recipe: str, run_dir: Path, reference: exact.Reference) -> None:
        """Let a run that has few steps left come to its end, and begin another one."""
        newest = checkpoints.newest_whole(checkpoints.found(run_dir / "checkpoints"))
        if newest and newest.step > len(reference["steps"]) - LAST_STEPS:
            with self._attempt(recipe) as attempt:
                attempt.ended(START_LIMIT_S)
                self._resumed(recipe, [] if attempt.code == 0 else [attempt.text()[-2000:]], run_dir, reference)
            shutil.rmtree(run_dir)

    def _resumed(self, recipe: str, wrong: list[str], run_dir: Path, reference: exact.Reference) -> None:
        """Write a verdict for each trial whose run has now been resumed."""
        if waiting := self._waiting(recipe):
            found = wrong + exact.differences(run_dir, reference)
            for number in waiting:
                append_json(self.trials, {"trial": number, "resumed": found[:10]})
            numbers = ", ".join(map(str, waiting))
            print(f"  trial {numbers}: resumed {'exactly' if not found else found[:3]}", flush=True)

    def _waiting(self, recipe: str) -> list[int]:
        """Return the trials after which the run has not been resumed yet."""
        known = read_jsonl(self.trials)
        told = {each["trial"] for each in known if "resumed" in each}
        return [each["trial"] for each in known if each.get("recipe") == recipe and each["trial"] not in told]

    def next(self) -> int:
        return 1 + max((each["trial"] for each in read_jsonl(self.trials) if "end" in each), default=0)

    def alone(self, one: Trial) -> table.Record:
        """Make a trial in a run of its own."""
        folder = self.out / f"again_{one.number}"
        shutil.rmtree(folder, ignore_errors=True)
        own = Chaos(folder, self.seed, self.references)
        own.run(one)
        own.settle()
        (record,) = table.merged(read_jsonl(own.trials))
        return record

    def excused(self, record: table.Record) -> bool:
        """Say whether a trial with a miss passes when it is made again, alone: the first one met an unlucky moment."""
        if table.is_no_chance(record):
            return False
        print(f"trial {record['trial']} again, alone:", flush=True)
        return not table.misses(self.alone(trial(record["seed"], record["trial"])))


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), help="folder of trials.jsonl and of the runs")
    parser.add_argument("--seed", type=int, default=0, help="draws the trials")
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"in all; {len(CELLS)} strike everybody everywhere")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no further trial after these; 0: one trial"
    )
    parser.add_argument("--trial", type=int, help="make this one alone, in a run of its own")
    parser.add_argument(
        "--twice", action="store_true", help="make each trial with a miss again, alone, before it counts"
    )
    parser.add_argument("--table", type=Path, help="write the table of all trials so far to this file, and end")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # an attempt ends with its trial
    chaos = Chaos(args.out, args.seed, args.out)
    if args.table:
        args.table.write_text(table.page(read_jsonl(chaos.trials)))
        return
    until = time.monotonic() + args.minutes * 60
    if args.trial:
        trials = [chaos.alone(trial(args.seed, args.trial))]
    else:
        first = chaos.next()
        while chaos.next() <= args.trials and (chaos.next() == first or time.monotonic() < until):
            chaos.run(trial(args.seed, chaos.next()))
        if args.twice or chaos.next() > args.trials:
            chaos.settle()
        trials = table.merged(read_jsonl(chaos.trials))
    print(table.summary(trials), flush=True)
    missed = [each for each in trials if table.misses(each)]
    if args.twice:
        missed = [each for each in missed if not chaos.excused(each)]
        print(table.of_victims(trials), *map(table.line, missed), sep="\n")
        print(f"{len(missed)} trials fail: those above this line" if missed else "no trial fails", flush=True)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
