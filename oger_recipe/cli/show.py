"""``oger show RUN``: print a prompt with its rollouts, their verdicts and rewards, and the teachers that entered."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from oger_recipe.cli.shared import CommandParser, own_flags_only, run_command


def main(argv: Sequence[str] | None = None) -> None:
    run_command(_parser, _show, argv)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "oger show",
        description="Prints a group of a training step: the prompt, and each rollout with its verdict, extracted "
        "answer, rewards by source, similarity, entropy and advantage; a teacher stands beside the rollout that "
        "it replaced. The default is the first group, of the newest step with samples, whose rollouts got "
        "different rewards: only from such groups the policy learns.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="folder of the run, as oger runs lists it")
    parser.add_argument("--step", type=int, help="step of the group (default: the newest with samples)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--worst", action="store_true", help="the group of the step with the lowest mean reward")
    which.add_argument("--best", action="store_true", help="the group of the step with the highest mean reward")
    which.add_argument("--uid", help="the group of this prompt, of the newest step that has it unless --step is given")
    return parser


@own_flags_only
def _show(args: argparse.Namespace) -> None:
    from oger_recipe.report.runs import require_run
    from oger_recipe.report.show import BEST, WORST, choose, group_view
    from oger_recipe.report.terminal import terminal

    which = WORST if args.worst else BEST if args.best else None
    group, place, of = choose(require_run(args.run), step=args.step, which=which, uid=args.uid)
    console = terminal()
    console.print(group_view(group, place, of, console))


if __name__ == "__main__":
    main()
