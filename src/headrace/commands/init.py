"""`headrace init`: write a commented configuration to begin with."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import click

from headrace.options import debug, example
from headrace.schemas.errors import UsageError

_KAFKA = """\
kafka:                          # any librdkafka option but those that exactly-once rests on
  # security.protocol: SASL_SSL
  # sasl.mechanism: SCRAM-SHA-512
  # sasl.username: headrace
  # sasl.password: ${env:KAFKA_PASSWORD}   # or ${file:/run/secrets/kafka}; never shown
"""


@click.command(
    "init",
    short_help="Write a commented configuration to begin with.",
    epilog=example("headrace init --name workorders", "headrace init --broker kafka://kafka-1:9092 -c orders.yaml"),
)
@click.option(
    "-c",
    "--config",
    "file",
    default="headrace.yaml",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
)
@click.option("--name", help="What to call the work.  [default: the folder's name]")
@click.option(
    "--broker",
    default="local:./data",
    show_default=True,
    metavar="ADDRESS",
    help="kafka://host:9092,host:9092, or local:DIR for the embedded store.",
)
@click.option(
    "--model", default="./model", show_default=True, metavar="DIR", help="Folder with weights and vocabulary."
)
@debug
def command(file: Path, name: str | None, broker: str, model: str) -> None:
    """Write a commented headrace.yaml; a file that is there is not touched."""
    text = render(name or _folder_name(), broker, model)
    from headrace.config import loads

    loads(text, "headrace init")  # what we write must be what we read: a bad --name is refused here
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already and was not touched: name another with -c") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror}): name another with -c") from None
    option = "" if file == Path("headrace.yaml") else f" -c {file}"
    click.echo(f"wrote {file}: set tokenizer.path, train.model and the labels, then `headrace doctor{option}`")


def render(name: str, broker: str, model: str) -> str:
    """The configuration to begin with."""
    template = files("headrace.commands").joinpath("init.yaml").read_text(encoding="utf-8")
    values = {
        "SCHEMA": str(files("headrace").joinpath("schema.json")),
        "NAME": name,
        "BROKER": broker,
        "MODEL": model,
        "KAFKA": _KAFKA if broker.startswith("kafka:") else "",
    }
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], template)


def _folder_name() -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path.cwd().name).strip("-._")
    return name or "headrace"
