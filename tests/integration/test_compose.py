"""docker-compose.yml without Docker: each service's command runs here as a process, against a real broker.

What the containers would see is rebuilt under a temporary folder: mounted files are copied to `ROOT/their/path`, and
container paths and the broker's address are rewritten in files and commands. The environment of a process is what its
service sets, and nothing else but PATH and HOME. The compose files themselves are given to Compose where it is there.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STAGES = ("ingest", "trainer")
WAIT_S = 240.0  # two busy cores; pytest's own limit is above it


def _entrypoint(target: str) -> list[str]:
    """The Dockerfile's ENTRYPOINT of a target, which Compose falls back to."""
    stage = re.split(r"^FROM ", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    (found,) = (part for part in stage if part.splitlines()[0].endswith(f" AS {target}"))
    return yaml.safe_load(re.search(r"^ENTRYPOINT (.*)$", found, re.MULTILINE)[1])


@dataclass
class Host:
    """A folder that stands for the containers' file systems, and what is rewritten on the way into it."""

    root: Path
    rewritten: dict[str, str]

    def rewrite(self, text: str) -> str:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
        for old, new in self.rewritten.items():
            text = text.replace(old, new)
        return text

    def mount(self, service: str) -> None:
        for volume in SERVICES[service].get("volumes", ()):
            source, target, *_ = volume.split(":")
            inside = self.root / target.lstrip("/")
            if source.startswith("./"):
                inside.parent.mkdir(parents=True, exist_ok=True)
                inside.write_text(self.rewrite((REPOSITORY / source).read_text()))
            else:
                inside.mkdir(parents=True, exist_ok=True)

    def command(self, service: str) -> list[str]:
        described = SERVICES[service]
        entrypoint = described.get("entrypoint") or _entrypoint(described["build"]["target"])
        return [self.rewrite(str(word)) for word in [*entrypoint, *described["command"]]]

    def environment(self, service: str) -> dict[str, str]:
        """The images put the environment's programs first in the PATH, as here."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        given = SERVICES[service].get("environment", {})
        return {"PATH": path, "HOME": str(self.root), **{key: self.rewrite(str(given[key])) for key in given}}

    @contextmanager
    def running(self, service: str) -> Iterator[subprocess.Popen[bytes]]:
        self.mount(service)
        log = self.root / f"{service}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(service), env=self.environment(service), cwd=self.root,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            print(f"--- {service}\n{log.read_text(errors='replace')[-4000:]}")

    def healthy(self, service: str) -> bool:
        kind, check = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD-SHELL"
        done = subprocess.run(
            ["sh", "-c", self.rewrite(check)], env=self.environment(service), cwd=self.root, check=False
        )
        return done.returncode == 0


@pytest.fixture
def host(tmp_path: Path, kafka: str) -> Host:
    unique = f"compose-{uuid.uuid4().hex[:8]}"
    paths = {path: str(tmp_path / path.lstrip("/")) for path in ("/etc/headrace", "/checkpoints")}
    return Host(tmp_path, {**paths, "kafka:9092": kafka, "workorders": unique})


def _until_healthy(host: Host, service: str, process: subprocess.Popen[bytes]) -> None:
    """Each check looks at the broker, so the loop needs no pause of its own."""
    deadline_s = time.monotonic() + WAIT_S
    while not host.healthy(service):
        assert process.poll() is None, f"{service} ended with {process.returncode}"
        assert time.monotonic() < deadline_s, f"{service} is not healthy"


def _finish(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(WAIT_S)


@pytest.mark.timeout(900)
def test_every_service_runs_by_its_command_and_ends_on_sigterm(host: Host) -> None:
    with host.running("topics") as topics:
        assert topics.wait(WAIT_S) == 0
    with host.running("ingest") as ingest, host.running("trainer") as trainer, host.running("publisher") as publisher:
        _until_healthy(host, "ingest", ingest)
        _until_healthy(host, "trainer", trainer)
        assert _finish(publisher) == 0
        assert _finish(ingest) == 0
        assert _finish(trainer) == 0
    assert list((host.root / "checkpoints").glob("compose-*/main/step-*/manifest.json"))


def test_a_mistake_in_the_configuration_stops_before_the_stages_start(host: Host) -> None:
    host.rewritten["lanes:"] = "lames:"
    with host.running("topics") as topics:
        assert topics.wait(WAIT_S) == 2
    for stage in STAGES:
        assert SERVICES[stage]["depends_on"]["topics"] == {"condition": "service_completed_successfully"}


def test_services_start_in_order_and_are_watched() -> None:
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    for service in ("kafka", *STAGES):
        assert "healthcheck" in SERVICES[service]
    for stage in STAGES:
        assert SERVICES[stage]["restart"] == "on-failure"  # 0 is done; 75, a service is away, is tried again
    for once in ("topics", "publisher"):
        assert SERVICES[once]["restart"] == "no"


def test_what_must_outlive_a_container_lies_in_a_named_volume() -> None:
    named = {name for service in SERVICES.values() for name in _sources(service) if not name.startswith("./")}
    assert named == set(COMPOSE["volumes"]) == {"broker", "checkpoints"}


def _sources(service: dict[str, Any]) -> list[str]:
    return [volume.split(":")[0] for volume in service.get("volumes", ())]


def test_mounted_files_are_in_the_repository() -> None:
    mounted = {name for service in SERVICES.values() for name in _sources(service) if name.startswith("./")}
    assert [name for name in mounted if not (REPOSITORY / name).is_file()] == []


def test_images_run_as_a_user_without_rights() -> None:
    for part in re.split(r"^FROM ", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE):
        if re.match(r"\S+ AS (ingest|trainer)\n", part):
            assert re.search(r"^USER headrace$", part, re.MULTILINE)
            assert part.index("USER headrace") < part.index("ENTRYPOINT")


def _compose() -> list[str] | None:
    """Compose as a Docker plugin, or the program that the development requirements bring on Linux."""
    program = Path(sys.executable).with_name("docker-compose")
    if program.exists():
        return [str(program)]
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        return [docker, "compose"]
    return None


@pytest.mark.skipif(_compose() is None, reason="no Docker Compose")
@pytest.mark.parametrize("over", [None, "deploy/host-network.yaml", "deploy/gpu.yaml"])
def test_compose_accepts_the_files(over: str | None) -> None:
    files = [word for name in ("docker-compose.yml", over) if name for word in ("-f", name)]
    done = subprocess.run(
        [*_compose(), *files, "config", "--format", "json"],
        cwd=REPOSITORY, env={**os.environ, "PADDLE_INDEX": "unset"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower()
    if over == "deploy/host-network.yaml":
        services = yaml.safe_load(done.stdout)["services"].values()
        assert {service["network_mode"] for service in services} == {"host"}
        assert not any(service.get("ports") for service in services)
