"""The test broker itself: it says what is missing, it keeps its data, and it never outlives the tests."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.services import ServiceUnavailable, kafka_classpath
from tests.services.fixtures import kafka_broker
from tests.services.kafka_broker import KafkaBroker

__all__ = ["kafka_broker"]

ROOT = Path(__file__).parents[2]
PARENT = """
import sys
from pathlib import Path
from tests.services.kafka_broker import KafkaBroker
broker = KafkaBroker(Path(sys.argv[1])).start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_without_java_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match="`java`"):
        KafkaBroker(tmp_path / "kafka").start()


def test_without_maven_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match="`mvn`"):
        kafka_classpath.kafka_classpath()


@pytest.mark.skipif(shutil.which("mvn") is None, reason="no Maven")
def test_where_maven_reaches_no_repository_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nowhere = f"-Dmaven.repo.local={tmp_path}/repository -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1"
    monkeypatch.setenv("MAVEN_OPTS", nowhere)
    with pytest.raises(ServiceUnavailable, match=r"Maven cannot resolve the Kafka broker: .*repositories"):
        kafka_classpath.kafka_classpath()


def test_a_classpath_whose_jars_have_gone_is_resolved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers = []
    jar = tmp_path / "kafka.jar"

    def resolve() -> str:
        jar.touch()
        answers.append(str(jar))
        return str(jar)

    monkeypatch.setattr(kafka_classpath, "_resolve", resolve)
    assert kafka_classpath.kafka_classpath() == kafka_classpath.kafka_classpath() == str(jar)
    assert len(answers) == 1
    jar.unlink()
    assert kafka_classpath.kafka_classpath() == str(jar)
    assert len(answers) == 2


def test_topics_survive_restart_and_kill(kafka_broker: KafkaBroker) -> None:
    address = kafka_broker.address
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
    kafka_broker.restart()
    kafka_broker.kill()
    kafka_broker.start()
    assert kafka_broker.address == address
    assert "kept" in admin.list_topics(timeout=30).topics


def test_the_broker_dies_with_a_killed_parent(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    # The fixture is asked for only because it skips where no broker can run.
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "orphan")],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    broker = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    broker.wait(timeout=30)
