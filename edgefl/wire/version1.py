"""The part of protocol version 1 that finds devices and aggregators of that version.

It is used only to name the side that must be updated.
"""

from dataclasses import dataclass

OLD_PROTOCOL_VERSION = 1
OLD_TOPIC_PREFIX = f"edgefl/v{OLD_PROTOCOL_VERSION}"


@dataclass(frozen=True, slots=True)
class State:
    """The State of version 1.

    Programs of version 1 show `phase` to the user unchanged, so it can carry any text.
    """

    federation: str
    session: str
    phase: str
    round: int
    rounds: int
    cohort_size: int
    deadline_s: float
    plan: str
    ts: float
    signature: str = ""


def format_state_topic(federation: str) -> str:
    """Return the topic on which a version 1 aggregator publishes its retained state.

    Args:
        federation: name of the federation, or `+` for any.
    """
    return f"{OLD_TOPIC_PREFIX}/{federation}/state"


def format_status_topic(federation: str) -> str:
    """Return the subscription for the status of all devices of version 1."""
    return f"{OLD_TOPIC_PREFIX}/{federation}/device/+/status"


def is_version1(topic: str) -> bool:
    """Return whether a topic belongs to version 1."""
    return topic.startswith(f"{OLD_TOPIC_PREFIX}/")
