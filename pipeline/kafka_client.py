"""What every Kafka client here has in common: its options, what it hears of the connection, its errors in our words.

Options come in three layers: our defaults, the user's `kafka:` section over them, and over both what correctness rests
on. A client's own log lines are for debugging only: what they mean for the user is said by the errors raised here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from headrace.schemas.errors import BrokerAway, Fenced, HeadraceError, TooLarge, TopicError, UsageError

ASK_WAIT_S: Final = 10.0  # for an answer to a question; a broker that is there answers within milliseconds
REQUEST_WAIT_S: Final = 5.0  # for one try of it
AWAY_WAIT_S: Final = 30.0  # a restart of the broker is waited out by readers and workers, a longer absence is an error
TRANSACTION_TIMEOUT_MS: Final = 20_000  # how long the broker keeps the transaction of a process that is gone or frozen

RETRY_S: Final = 0.05

LOG: Final = logging.getLogger("headrace.kafka")

Client = TypeVar("Client")

# librdkafka remembers the coordinator of a group for this long (15 minutes by default), even one that has left the
# cluster for a while: after a restart of the broker all questions about that group would wait for it (librdkafka#5511).
# Costs one metadata request a second.
COORDINATOR_DEFAULTS: Final[Mapping[str, Any]] = {"metadata.max.age.ms": 500}
CONSUMER_DEFAULTS: Final[Mapping[str, Any]] = {
    "fetch.queue.backoff.ms": 20,  # librdkafka's second of pause, whenever its queue is full, would bound the rate
    "fetch.wait.max.ms": 100,  # a fetch in flight delays what was seeked, resumed or assigned meanwhile
    "heartbeat.interval.ms": 1_000,  # how soon a member learns of a rebalance
    "session.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 30_000,  # how soon new partitions of a text topic are seen
}
PRODUCER_DEFAULTS: Final[Mapping[str, Any]] = {
    **COORDINATOR_DEFAULTS,
    "compression.type": "lz4",
    "linger.ms": 10,
    "message.max.bytes": 100_000_000,  # the topic's own limit decides
    "queue.buffering.max.kbytes": 262_144,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
}
CONSUMER_FIXED: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # A partition changes hands only through a whole revocation, so that what was assigned has one generation.
    "partition.assignment.strategy": "range",
}

_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.PRODUCER_FENCED,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
_TOO_LARGE: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
}
_REFUSED: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_SETTLING: Final = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
NO_TOPIC: Final = {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_WRONG_TOPIC: Final = NO_TOPIC | {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
}


class Link:
    """One client's line to the broker: how it was made, and what its threads said of the connection."""

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        self.address = f"kafka://{servers}"
        self._servers = servers
        self._options = options
        self._heard = ""  # the last thing that went wrong with the connection
        self._refused: KafkaError | None = None
        self._down_since_s: float | None = None

    def another(self) -> Link:
        """A line of its own for another client of the same broker."""
        return Link(self._servers, self._options)

    def client(self, make: Callable[..., Client], defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> Client:
        """Make a client; it connects in the background. Raises UsageError for options that librdkafka refuses."""
        options = {"client.id": "headrace", **defaults, **self._options, **fixed}
        options |= {"bootstrap.servers": self._servers, "error_cb": self._hear}
        try:
            return make(options, logger=_client_log())
        except (KafkaException, ValueError, TypeError) as error:
            raise UsageError(f"kafka: the client refuses its options: {reason(error)}: correct that key") from error

    def ask(
        self, doing: str, request: Callable[[], Any], listen: Callable[[], object], none_for: Collection[int] = ()
    ) -> Any:
        """Send a request until it is answered. Answers whose code is in `none_for` are None.

        `listen` lets the client tell what it heard of the connection, for the message of the error.
        """
        deadline_s = time.monotonic() + ASK_WAIT_S
        while True:
            try:
                return request()
            except KafkaException as error:
                code = error.args[0].code()
                if code in none_for:
                    return None
                if code not in _SETTLING or time.monotonic() > deadline_s:
                    listen()
                    raise self.failure(error.args[0], doing) from error
            time.sleep(RETRY_S)

    def failure(self, error: KafkaError, doing: str) -> HeadraceError:
        """What a failed call means for the caller."""
        code = error.code()
        if code in _REFUSED or self._refused is not None:
            return self._refusal(self._refused or error, doing)
        if error.fatal() or code in _FENCED:
            return Fenced(f"{self.address}: cannot {doing}, the work has passed to another worker: {error.str()}")
        if code in _TOO_LARGE:
            return TooLarge(
                f"{self.address}: cannot {doing}: {error.str()}: make it smaller, or raise the limit of the topic "
                "(max.message.bytes) or of the broker (offset.metadata.max.bytes)"
            )
        if code in _WRONG_TOPIC:
            return TopicError(f"{self.address}: cannot {doing}: {error.str()}: see `headrace topics create`")
        heard = f" ({self._heard})" if self._heard else ""
        return BrokerAway(f"{self.address}: cannot {doing}: {error.str()}{heard}: is the broker up and reachable?")

    def check(self, probe: Callable[[], object]) -> None:
        """Raise when the broker refuses us, or has been away for AWAY_WAIT_S and does not answer `probe`."""
        if self._refused is not None:
            raise self._refusal(self._refused, "connect")
        if self._down_since_s is None or time.monotonic() < self._down_since_s + AWAY_WAIT_S:
            return
        try:
            probe()
        except KafkaException as error:
            raise self.failure(error.args[0], "reach the broker") from error
        self._down_since_s = None

    def _hear(self, error: KafkaError) -> None:
        """Called by a client when something happened to a connection; clients go on trying by themselves."""
        if error.code() in _REFUSED:
            self._refused = error
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._heard = error.str()
        elif self._down_since_s is None:
            self._down_since_s = time.monotonic()

    def _refusal(self, error: KafkaError, doing: str) -> UsageError:
        return UsageError(
            f"{self.address}: the broker does not let us {doing}: {error.str()}: check the credentials under `kafka:` "
            "and the access rights of that user"
        )


def reason(error: Exception) -> str:
    """An exception of confluent-kafka in words."""
    inner = error.args[0] if error.args else None
    return inner.str() if isinstance(inner, KafkaError) else str(error)


def retriable(error: KafkaError) -> bool:
    """Whether the same call may be made again, to go on where it stopped."""
    return bool(error.retriable()) and not error.fatal() and not error.txn_requires_abort()


def _client_log() -> logging.Logger:
    if not LOG.filters:
        LOG.addFilter(_demote)
    return LOG


def _demote(record: logging.LogRecord) -> bool:
    """Clients report every refused connection as an error, several times a second while a broker restarts."""
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return LOG.isEnabledFor(logging.DEBUG)
