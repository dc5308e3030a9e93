"""The Java classpath of a Kafka broker, resolved by Maven once per machine.

`tests/services/kafka/pom.xml` names the broker's version. Maven puts the jars into its own local repository and tells
their paths; that answer is kept in a user cache folder under the hash of the pom, and asked for again when the pom
changes or a jar has gone. Resolving takes seconds with a filled local repository and is bounded without one.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import ServiceUnavailable

POM = Path(__file__).parent / "kafka" / "pom.xml"
RESOLVE_WAIT_S = 300.0  # 45 jars, about 80 MB, over a slow line
CONNECT_WAIT_MS = 5_000  # a repository that does not answer is unavailable, not slow


def kafka_classpath() -> str:
    """Give the broker's classpath, from the cache if every jar in it is still there."""
    cached = _cache_file()
    cached.parent.mkdir(parents=True, exist_ok=True)
    with cached.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test runs beside each other: Maven's local repository takes one writer
        classpath = cached.read_text() if cached.exists() else ""
        if classpath and all(Path(jar).is_file() for jar in classpath.split(os.pathsep)):
            return classpath
        classpath = _resolve()
        _write(cached, classpath)
        return classpath


def executable(name: str) -> str:
    """Find a program on the PATH, or say that it is missing."""
    found = shutil.which(name)
    if found is None:
        raise ServiceUnavailable(f"the Kafka broker of the tests needs `{name}`, which is not on the PATH")
    return found


def _cache_file() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pom_hash = hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    return root / "headrace-tests" / f"kafka-{pom_hash}.classpath"


def _resolve() -> str:
    """Ask Maven, which downloads what its local repository lacks."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "classpath"
        command = [
            executable("mvn"), "-q", "-B", "-f", str(POM), "dependency:build-classpath",
            f"-Dmdep.outputFile={answer}",
            f"-Daether.connector.connectTimeout={CONNECT_WAIT_MS}", "-Dstyle.color=never",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RESOLVE_WAIT_S, stdin=subprocess.DEVNULL, check=False
            )
        except subprocess.TimeoutExpired:
            raise ServiceUnavailable(f"Maven did not resolve the Kafka broker within {RESOLVE_WAIT_S:.0f} s") from None
        if done.returncode != 0 or not answer.is_file():
            raise ServiceUnavailable(f"Maven cannot resolve the Kafka broker: {_first_error(done.stdout)}")
        return answer.read_text().strip()


def _first_error(output: str) -> str:
    """The line of Maven's output that says what was wrong."""
    for line in output.splitlines():
        _, mark, message = line.partition("[ERROR]")
        if mark and message.strip():
            return message.strip()
    return output.strip()[-500:] or "no output"


def _write(path: Path, text: str) -> None:
    """Publish by rename: two test runs may resolve at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as partial:
        partial.write(text)
    Path(partial.name).replace(path)
