"""The settings of a device."""

from dataclasses import dataclass, field
from pathlib import Path

from devices.conditions import Conditions
from devices.plan_check import AllowedCode
from edgefl.data.sources import DataSource
from edgefl.protocol.device.order import SharingRules
from edgefl.protocol.security.enrolment import Enrolment
from edgefl.protocol.transport.link import KEEPALIVE_S


@dataclass(frozen=True)
class DeviceSettings:
    """The options of `edgefl device start`.

    Attributes:
        broker: URL of the broker, or several URLs with commas.
        client_id: id of the device.
        data: where the samples are.
        state: the state directory.
        federation: name of the federation. Empty for the only one that runs.
        learner: a name of `LEARNERS`.
        threads: number of threads of the learner.
        keepalive_s: MQTT keepalive in seconds.
        wait_s: seconds to wait for a federation. 0 waits without limit.
        export: whether the device exports an int8 model at the end.
        enrolment: the keys of the device. None connects without a client certificate and signatures.
        conditions: conditions under which the device accepts tasks.
        allowed: names that a plan may use in addition to the registered ones.
        sharing: the owner's rules about the data that the device may send.
    """

    broker: str
    client_id: str
    data: DataSource
    state: Path
    federation: str = ""
    learner: str = "litert"
    threads: int = 1
    keepalive_s: int = KEEPALIVE_S
    wait_s: float = 0.0
    export: bool = True
    enrolment: Enrolment | None = None
    conditions: Conditions = field(default_factory=Conditions)
    allowed: AllowedCode = field(default_factory=AllowedCode)
    sharing: SharingRules = field(default_factory=SharingRules)
