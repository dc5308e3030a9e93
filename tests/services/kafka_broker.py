"""A real Kafka broker for the tests: one node, KRaft, its own folder and ports.

    broker = KafkaBroker(Path(folder)).start()
    ... broker.address ...
    broker.pause(); broker.resume(); broker.kill(); broker.restart(); broker.stop()

The broker runs as a plain Java process (`kafka.Kafka`) over the classpath that `kafka_classpath` resolves. Whether it
is ready is found out by asking it. It keeps its port and its data over `restart`, and dies with the process that
started it.

In the foreground, for trying things out: `python -m tests.services.kafka_broker --port 9092 --data DIR`.
"""

import argparse
import atexit
import base64
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.services import ServiceUnavailable
from tests.services.kafka_classpath import executable, kafka_classpath

HOST = "127.0.0.1"
LOGGING = Path(__file__).parent / "kafka" / "log4j2.properties"
START_WAIT_S = 120.0  # seconds on an idle machine; two busy cores need more
STOP_WAIT_S = 30.0
TRIES = 3
# Below the range that the kernel gives to outgoing connections: while the broker is down, a client that connects to its
# port from the same port would be connected to itself, and the broker could not come back.
PORTS = range(20_000, 32_000)
# Small and quick rather than fast: one garbage collector thread, and no second compiler competing for the cores.
JVM_FLAGS = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+PerfDisableSharedMem")
# Shorter than Kafka's own: a killed broker is let back in when the session of its former self has run out (9 s), and
# transactions are checked for having timed out every 10 s.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
"""


class KafkaBroker:
    """One broker over one folder. `address` is its bootstrap address from the first start on."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        """Take the folder for data and log; `settings` are added to the server's properties."""
        self._folder = folder
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.port: int | None = None

    @property
    def address(self) -> str:
        """`host:port` for `bootstrap.servers`."""
        if self.port is None:
            raise RuntimeError("the broker was never started")
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        return self._running().pid

    @property
    def log(self) -> Path:
        """What the broker wrote, over all its starts."""
        return self._folder / "broker.log"

    def start(self, port: int | None = None) -> Self:
        """Start on `port`, or on a free one, and return when the broker answers."""
        java = executable("java")
        classpath = kafka_classpath()
        fixed = port or self.port
        for _ in range(TRIES):
            self._format(java, classpath, fixed or _free_port())
            self._launch(java, classpath)
            if self._is_ready():
                return self
            self.kill()  # it ended by itself: somebody else may have taken one of its ports in between
        raise ServiceUnavailable(f"the Kafka broker did not start on {self.address}: {_tail(self.log)}")

    def stop(self) -> None:
        """Shut down in order; data stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a power cut would; data stay as they are."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop, if it runs, and start again on the same port over the same data."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        self._running().send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Wait until the process ends by itself; its exit code."""
        return self._running().wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process

    def _format(self, java: str, classpath: str, port: int) -> None:
        """Write the properties, with a new port for the controller, and in a new folder format the storage."""
        data = self._folder / "data"
        properties = self._folder / "server.properties"
        self._folder.mkdir(parents=True, exist_ok=True)
        text = PROPERTIES.format(host=HOST, port=port, controller_port=_free_port(but=port), data=data)
        properties.write_text(text + "".join(f"{key}={value}\n" for key, value in self._settings.items()))
        if not (data / "meta.properties").exists():
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
            done = subprocess.run(
                [java, *JVM_FLAGS, "-cp", classpath, *tool],
                capture_output=True, text=True, timeout=START_WAIT_S, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise ServiceUnavailable(f"Kafka's storage was not formatted: {(done.stdout + done.stderr)[-2000:]}")
        self.port = port

    def _launch(self, java: str, classpath: str) -> None:
        if self._process is not None:
            raise RuntimeError("the broker is running already")
        java_command = [
            java, *JVM_FLAGS, f"-Dlog4j2.configurationFile={LOGGING}", "-cp", classpath,
            "kafka.Kafka", str(self._folder / "server.properties"),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches the tests and not the broker first.
            self._process = subprocess.Popen(
                [*_dies_with_parent(), *java_command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.kill)

    def _is_ready(self) -> bool:
        """Ask until the broker names itself (not another one on that port), or until its process has ended."""
        process = self._running()
        identity = (self._folder / "data" / "meta.properties").read_text().splitlines()
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline_s = time.monotonic() + START_WAIT_S
        while process.poll() is None:
            try:
                found = admin.list_topics(timeout=1.0)
                if found.brokers and f"cluster.id={found.cluster_id}" in identity:
                    return True
            except KafkaException:
                pass  # not up yet: the call itself waited
            if time.monotonic() > deadline_s:
                self.kill()
                raise ServiceUnavailable(
                    f"the Kafka broker did not answer on {self.address} within {START_WAIT_S:.0f} s: {_tail(self.log)}"
                )
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        atexit.unregister(self.kill)
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)  # a frozen process takes SIGTERM only once it goes on
        try:
            process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _dies_with_parent() -> list[str]:
    """A prefix that asks the kernel (Linux) to kill the broker when we are killed; elsewhere only `atexit` does."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _free_port(but: int | None = None) -> int:
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            if port != but:
                return port
    raise ServiceUnavailable(f"no free port between {PORTS.start} and {PORTS.stop}")


def _tail(log: Path, max_chars: int = 1_000) -> str:
    """The end of the broker's log without the stack frames."""
    if not log.exists():
        return "no log"
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith("\t"))[-max_chars:]


def main() -> int:
    """Run one broker in the foreground until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.services.kafka_broker", description=main.__doc__)
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--data", type=Path, required=True, help="folder for data and log; kept")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    broker = KafkaBroker(options.data.resolve())
    try:
        broker.start(options.port)
        print(f"kafka://{broker.address}", flush=True)
        return broker.wait()
    except ServiceUnavailable as missing:
        print(missing, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        broker.stop()


if __name__ == "__main__":
    sys.exit(main())
