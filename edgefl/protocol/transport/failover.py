"""Failover order of a broker list, and the errors for a broker that cannot be reached or refuses."""

import random
import ssl
from collections.abc import Sequence

from edgefl.base.errors import LinkError
from edgefl.protocol.wire.url import Broker

BROKER_REMEDY = "start one with `edgefl broker start`, or check host, port and firewall"
# A broker with TLS closes the connection of a revoked or expired certificate without a message.
KEYS_REMEDY = (
    "if the broker's log mentions this certificate, it is revoked or expired: enrol again, otherwise check "
    "host and port"
)
SILENT_REMEDY = (
    f"{BROKER_REMEDY}, or let the broker allow retained messages and QoS 1. With ?protocol=5 in the url, the "
    "error names what the broker refuses"
)
REFUSAL_REMEDIES = {
    "Bad user name or password": "check user and password in the url",
    "Not authorized": "check user and password in the url",
    "Unsupported protocol version": "leave ?protocol=5 out of the url",
    "Retain not supported": "allow retained messages (mosquitto: retain_available true)",
    "QoS not supported": "allow QoS 1 (mosquitto: max_qos 1 or 2)",
}
"""Remedies by the reason with which a broker refuses a login."""


class BrokerOrder:
    """The order in which a link tries the brokers of a cluster.

    The present broker comes last. The others follow in a random order, so that a whole fleet does not move to
    the same broker.
    """

    def __init__(self, brokers: Sequence[Broker], present: Broker) -> None:
        others = [broker for broker in brokers if broker is not present]
        random.shuffle(others)
        self._order = [*others, present]

    def advance(self) -> Broker:
        """Return the broker to try next."""
        self._order.append(self._order.pop(0))
        return self._order[-1]


def explain_unreachable(url: str, error: OSError) -> LinkError:
    """Return the error for a broker without a connection.

    Args:
        url: url of the broker, without password.
        error: the error of the connection attempt.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        why = (
            f"{error.verify_message}; give --enrol with the file of `edgefl device enrol` or `edgefl broker "
            "watcher`; with such a file, use the host name that the broker was set up with, check this "
            "machine's clock, or enrol again"
        )
        return LinkError(f"the broker at {url} cannot prove its identity: {why}")
    return LinkError(f"no broker at {url}: {error}; {BROKER_REMEDY}")


def explain_refused(url: str, problem: str, timeout_s: float) -> LinkError:
    """Return the error for a broker that accepts the connection but not the login.

    Args:
        url: url of the broker, without password.
        problem: reason of the broker. Empty if it did not answer.
        timeout_s: how long the link waited for an answer, in seconds.
    """
    if not problem:
        remedy = KEYS_REMEDY if url.startswith("mqtts:") else SILENT_REMEDY
        return LinkError(
            f"{url} accepted the connection but did not answer in MQTT within {timeout_s:g} s; {remedy}"
        )
    remedy = REFUSAL_REMEDIES.get(problem, "look at the broker's log")
    return LinkError(f"the broker at {url} refused: {problem}; {remedy}")


def combine_errors(problems: Sequence[LinkError]) -> LinkError:
    """Return one error for the errors of several brokers."""
    if len(problems) == 1:
        return problems[0]
    parts = [str(problem).rpartition("; ") for problem in problems]
    return LinkError(
        f"none of {len(problems)} brokers: {', '.join(head for head, _, _ in parts)}; {parts[-1][2]}"
    )
