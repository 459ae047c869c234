"""``oger push RUN --repo ME/NAME``: upload a run's model to the Hugging Face hub, with a card that says what it is."""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from oger_recipe.base import hub
from oger_recipe.base.errors import RecipeError
from oger_recipe.cli.shared import CommandParser, own_flags_only, run_command
from oger_recipe.report.publish import Copy, linked, read_run, write_model, write_samples


def main(argv: Sequence[str] | None = None) -> None:
    run_command(_parser, _push, argv)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser("oger push", allow_abbrev=False, description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that has ended")
    parser.add_argument("--repo", required=True, metavar="ME/NAME", help="repository of the model; created if missing")
    parser.add_argument(
        "--samples", metavar="ME/NAME", help="also upload rollouts and evaluated answers, as a dataset of this name"
    )
    parser.add_argument("--private", action="store_true", help="create new repositories as private")
    parser.add_argument(
        "--dry-run", action="store_true", help="write the folders to upload, and exit; needs neither hub nor login"
    )
    parser.add_argument("--out", type=Path, help="folder for --dry-run to write (default: push/<NAME>)")
    return parser


@own_flags_only
def _push(args: argparse.Namespace) -> None:
    for flag, name in (("--repo", args.repo), ("--samples", args.samples)):
        if name is not None and ("/" not in name or not hub.is_name(name)):
            raise RecipeError(f"{flag} {name}: write OWNER/NAME, as in the address of the repository on the hub")
    if args.out and not args.dry_run:
        raise RecipeError("--out is for --dry-run: without it nothing is kept here")
    if args.dry_run:
        out = args.out or Path("push") / args.repo.rpartition("/")[2]
        if out.exists() and any(out.iterdir()):
            raise RecipeError(f"--out {out} is not empty; choose another folder, or remove it")
        print("\n".join(f"{name}: {folder}" for _, name, folder in _write(args, out, shutil.copy2)))
        return
    if hub.is_offline():
        raise RecipeError("HF_HUB_OFFLINE is set: unset it to upload, or write the folders with --dry-run")
    with tempfile.TemporaryDirectory(dir=args.run, prefix=".oger-push-") as folder:
        for kind, name, written in _write(args, Path(folder), linked):
            print(_upload(kind, name, written, private=args.private), flush=True)


def _write(args: argparse.Namespace, out: Path, copy: Copy) -> list[tuple[str, str, Path]]:
    """Write the repositories below ``out``; return the kind, name and folder of each."""
    run = read_run(args.run)
    written = [("model", args.repo, out / "model")]
    write_model(run, args.repo, out / "model", samples_repo=args.samples, copy=copy)
    print("note: recipe.yaml, which is uploaded, names files and folders of this machine", flush=True)
    if args.samples:
        write_samples(run, args.samples, args.repo, out / "samples")
        written.append(("dataset", args.samples, out / "samples"))
    return written


def _upload(kind: str, name: str, folder: Path, *, private: bool) -> str:
    """Upload a folder as a repository; return its address."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        address = api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="Upload by the OGER recipe")
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise RecipeError(
            f"{name} could not be uploaded: {reason}. Log in by `hf auth login`, or look at what would be uploaded "
            "with --dry-run"
        ) from None
    return str(address)


if __name__ == "__main__":
    main()
