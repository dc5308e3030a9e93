"""`headrace export`: a checkpoint as a folder for serving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from headrace import __version__
from headrace.options import Given, configured, example

if TYPE_CHECKING:
    from headrace.trainer.export.folder import Form
    from headrace.trainer.export.source import Source


@click.command(
    "export",
    short_help="A checkpoint as a folder for serving.",
    epilog=example(
        "headrace export --format onnx",
        "headrace export checkpoints/workorders/main/step-0000002000 --format static --out serving",
    ),
)
@click.argument("checkpoint", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["static", "onnx", "safetensors"]),
    required=True,
    help="static: Paddle Inference; onnx: ONNX Runtime; safetensors: PaddleNLP's from_pretrained.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to make.  [default: NAME-RUN-STEP-FORMAT, here]",
)
@click.option("--force", is_flag=True, help="Replace an exported model that is there.")
@configured
def command(given: Given, checkpoint: str | None, form: str, out: Path | None, force: bool) -> None:
    """Write model, tokenizer, labels and a manifest of what the model has seen into a new folder.

    CHECKPOINT is the folder of a checkpoint, or that of a run (its newest); without it, the run of the configuration.
    """
    from headrace.trainer.export import folder

    if out is not None:
        folder.refuse_occupied(out, force=force)
    found = _source(given, checkpoint)
    out = out or Path(f"{found.name}-{found.run}-{found.checkpoint.step}-{form}")
    manifest = folder.write(found, folder.Order(cast("Form", form), out, force, f"headrace {__version__}"))
    rows = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in manifest["seen"]["rows"].items())
    click.echo(f"{out}: step {found.checkpoint.step} of {found.name}/{found.run} ({rows or 'no rows'}), {form}")


def _source(given: Given, checkpoint: str | None) -> Source:
    from headrace.trainer.export import source

    if checkpoint is not None:
        return source.find(checkpoint)
    config = given.load().config
    return source.of_run(config.checkpoint.root, config.name, config.run)
