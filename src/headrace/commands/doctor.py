"""`headrace doctor`: is everything there that the configuration needs?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.options import DEFAULT_FILE, Given, as_json, configured, example
from headrace.schemas.errors import EXIT_FAILED, EXIT_TRY_AGAIN

if TYPE_CHECKING:
    from headrace.checks import Finding
    from headrace.config import Config

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(
    "doctor",
    short_help="Check machine, packages, broker, topics, tokenizer, store.",
    epilog=example("headrace doctor", "headrace doctor --effective"),
)
@click.option(
    "--stage",
    type=click.Choice(["ingest", "train"]),
    help="Only what this stage needs.  [default: all that is configured]",
)
@click.option("--effective", is_flag=True, help="Print the configuration in force instead, secrets masked.")
@as_json
@configured
@click.pass_context
def command(context: click.Context, given: Given, stage: str | None, effective: bool, as_json: bool) -> None:
    """Check this machine, the packages, the broker, topics, tokenizer, checkpoint store and devices.

    Every line says ok, warn or fail, and what to do. Exit code 1 on a failure, 75 when only a service is away. Without
    a configuration only the machine is checked.
    """
    if effective:
        click.echo(given.load().shown(), nl=False)
        return
    config = given.load().config if given.file.exists() or given.file != DEFAULT_FILE else None
    findings = []
    for finding in _all(config, stage):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    failures = [finding for finding in findings if finding.level == "fail"]
    if failures:
        context.exit(EXIT_TRY_AGAIN if all(finding.away for finding in failures) else EXIT_FAILED)


def _all(config: Config | None, stage: str | None) -> Iterator[Finding]:
    from headrace import checks

    trains = config is not None and config.train is not None and stage != "ingest"

    yield from checks.machine()
    yield from checks.packages(config, trains=trains)
    yield from checks.disk(config)
    if config is None:
        cure = "`headrace init` writes one; `headrace demo` needs none"
        yield checks.Finding("warn", "configuration", "there is no headrace.yaml here", cure)
        return
    yield from checks.settings(config, trains=trains)
    yield from checks.broker_and_topics(config)
    yield from checks.tokenizer(config)
    if trains:
        yield from checks.devices(config)
        yield from checks.checkpoints(config)


def _print(finding: Finding) -> None:
    level = click.style(f"{finding.level:4}", fg=_COLOURS[finding.level])
    cure = f": {finding.cure}" if finding.cure else ""
    click.echo(f"{level}  {finding.subject}: {finding.text}{cure}")
