"""The events and actions that the machine of the aggregator and the machine of a client share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkRestored:
    """The connection to the broker is up again. Messages may have been lost, including retained ones."""


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Reports the load of the link. A machine adds messages only up to a limit.

    Attributes:
        in_flight: number of messages that the broker has not acknowledged.
    """

    in_flight: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed without another event."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish a message.

    Attributes:
        topic: the topic.
        message: a message of `edgefl.protocol.wire.messages` whose `ts` the driver sets, or bytes that are
            sent unchanged.
        receiver: the client that the signature is for, empty for all clients. None sends the message
            unsigned.
        is_retained: whether the broker keeps the message for later subscribers.
        qos: the MQTT quality of service, 0 or 1.
    """

    topic: str
    message: object
    receiver: str | None = None
    is_retained: bool = False
    qos: int = 1
