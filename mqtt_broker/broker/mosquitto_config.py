"""Mosquitto configuration for deployment: TLS with a certificate per device, access by user name, and limits.

Pitfalls of mosquitto 2.0: `listener` must come before its options. In the other order 2.0.11 opens port
1883 on all interfaces. The default autosave every half hour loses retained messages on kill -9.
`autosave_on_changes` counts every message as a change, and writes the whole store with its chunks each
time. `message_size_limit` acknowledges a message and drops it. `max_packet_size` refuses it. The default
queue of 1,000 messages drops acknowledged messages.

Aggregator and devices publish their retained messages again after each reconnect, so that messages lost in a
kill -9 come back.

mosquitto 2.0 has no limit on the bytes of one user. An access list cannot forbid a user to retain messages or
to keep sessions. `memory_limit` bounds all users together. Above it, mosquitto disconnects the client whose
message it would have to store.
"""

import getpass
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from edgefl.base.errors import ConfigError
from edgefl.base.system.files import write_atomic
from edgefl.base.system.host import read_total_memory_mb
from edgefl.protocol.security.authority import AGGREGATOR_ID, PUBLIC_MODE, WATCHER_ID
from edgefl.protocol.wire.topics import TOPIC_PREFIX

BROKER_ACCOUNT = "mosquitto"
"""The account that mosquitto's package creates."""
MEMORY_SHARE = 0.5
MIN_MEMORY_MB = 64
UNKNOWN_MEMORY_MB = 1024
TLS_MEMORY_MB = 256
"""Memory for the TLS buffers of the connections, about 100 KB each. `memory_limit` does not count it."""
MAX_CONNECTIONS = 2000
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Limit on the queued bytes of one client. Dropped chunks are requested again."""

CONF_TEMPLATE = """# edgefl's broker. Start it with: mosquitto -c {directory}/mosquitto.conf
# If root starts mosquitto, it changes to this account. The account reads server.key and no other secret file.
user {user}
per_listener_settings false
# Limit for all clients together. Above it, mosquitto disconnects the client whose message it would have to store. Its log names that client and its certificate.
memory_limit {memory_limit}
listener {port}{bind}
max_connections {max_connections}
cafile {directory}/ca.pem
certfile {directory}/server.pem
keyfile {directory}/server.key
crlfile {directory}/crl.pem
require_certificate true
use_identity_as_username true
tls_version tlsv1.2
allow_anonymous false
acl_file {directory}/acl
max_packet_size 262144
max_queued_messages 100000
max_queued_bytes {max_queued_bytes}
# edgefl does not resume broker sessions after a disconnect
persistent_client_expiration 1h
max_inflight_messages 20
max_keepalive 3600
set_tcp_nodelay true
persistence true
persistence_location {directory}/data/
autosave_interval 5
log_dest stderr
log_type error
log_type warning
log_type notice
log_type information
"""  # noqa: E501
ACL_TEMPLATE = """# Read and write permissions. %u is the user name, which is the certificate's common name.
user {aggregator}
topic readwrite {prefix}/+/#
topic write homeassistant/+/+/+/config

# Monitors read messages about rounds and devices, but no models and no updates, and write nothing. The patterns below apply to
# every user, so the deny lines revoke them for monitors.
user {watcher}
topic deny {prefix}/+/device/{watcher}/#
topic deny {prefix}/+/blob/#
topic read {prefix}/+/state
topic read {prefix}/+/clusters
topic read {prefix}/+/verdict
topic read {prefix}/+/round/+/summary
topic read {prefix}/+/device/+/status
topic read {prefix}/+/device/+/metrics
topic read {prefix}/+/device/+/anomaly
topic read {prefix}/+/device/+/task
topic read {prefix}/+/device/+/receipt
topic read {prefix}/+/device/+/up/+/begin
topic read homeassistant/#

pattern read {prefix}/+/state
pattern read {prefix}/+/blob/+/+
pattern read {prefix}/+/round/+/summary
pattern read {prefix}/+/device/%u/status
pattern read {prefix}/+/device/%u/task
pattern read {prefix}/+/device/%u/receipt
pattern read {prefix}/+/device/%u/claim
pattern write {prefix}/+/device/%u/status
pattern write {prefix}/+/device/%u/metrics
pattern write {prefix}/+/device/%u/anomaly
pattern write {prefix}/+/device/%u/want
pattern write {prefix}/+/device/%u/claim
pattern write {prefix}/+/device/%u/up/+/+
"""  # noqa: E501
BROKER_UNIT_TEMPLATE = """# The account {user} runs the broker and reads server.key.
# The account {owner} ran `edgefl broker init`. It owns ca.key, aggregator.enrol and devices.json, and runs the aggregator and
# `edgefl device enrol`. The broker does not need these files and cannot read them.
[Unit]
Description=edgefl's MQTT broker
After=network-online.target
Wants=network-online.target

[Service]
User={user}
ExecStart={mosquitto} -c {directory}/mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
# memory_limit of mosquitto.conf, plus TLS buffers for {max_connections} connections
MemoryMax={memory_max}M
TasksMax=16
LimitNOFILE={files}
UMask=0077
{inaccessible}
ReadWritePaths={directory}/data
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=true
PrivateDevices=true
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectKernelLogs=true
ProtectControlGroups=true
ProtectClock=true
ProtectHostname=true
RestrictSUIDSGID=true
RestrictNamespaces=true
RestrictRealtime=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=true
MemoryDenyWriteExecute=true
SystemCallFilter=@system-service
SystemCallArchitectures=native
CapabilityBoundingSet={capabilities}
AmbientCapabilities={capabilities}

[Install]
WantedBy=multi-user.target
"""  # noqa: E501
HIDDEN_FILES = ("ca.key", "aggregator.enrol", "devices.json", "revoked.json", "route.key")
"""Files that the broker does not need. systemd hides them from the broker's process.

They are the authority's key, the aggregator's enrolment, the enrolled devices, the revoked devices, and the
key of the routes of a NATS cluster.
"""


@dataclass(frozen=True)
class BrokerLimits:
    """Limits on the broker's use of its machine.

    Attributes:
        memory_mb: limit on the memory for messages and sessions of all clients, in MB of 2^20 bytes.
        connections: largest number of connected clients.
    """

    memory_mb: int
    connections: int = MAX_CONNECTIONS


def choose_limits() -> BrokerLimits:
    """Return the limits for a broker on this machine, which may use half of the memory."""
    memory_mb = read_total_memory_mb() * 1e6 / 2**20
    return BrokerLimits(
        max(MIN_MEMORY_MB, int(MEMORY_SHARE * memory_mb)) if memory_mb == memory_mb else UNKNOWN_MEMORY_MB
    )


def choose_account(directory: Path, requested: str = "") -> str:
    """Return the account that the broker runs as.

    Only root can give files to another account. Without `requested`, root gets the account `mosquitto` if it
    exists and can reach the directory. Otherwise the broker runs as the account of this process.

    Args:
        directory: directory of the broker's files.
        requested: name of an account, or empty.

    Raises:
        ConfigError: the account does not exist or cannot reach the directory, or this process must not give
            it the files.
    """
    current = getpass.getuser()
    if not requested:
        can_change = (
            os.getuid() == 0 and _has_account(BROKER_ACCOUNT) and _can_reach(BROKER_ACCOUNT, directory)
        )
        return BROKER_ACCOUNT if can_change else current
    if not _has_account(requested):
        raise ConfigError(
            f"there is no account {requested!r} on this machine; make it, or name another with --user"
        )
    if requested == current:
        return current
    if os.getuid():
        raise ConfigError(
            f"only root can give server.key to {requested!r}; run this as root, or leave --user out to run "
            f"the broker as {current!r}"
        )
    if not _can_reach(requested, directory):
        raise ConfigError(
            f"{requested!r} cannot reach {directory}: a directory above it is closed to other accounts; "
            "choose a directory such as /srv/edgefl"
        )
    return requested


def _has_account(account: str) -> bool:
    try:
        pwd.getpwnam(account)
    except KeyError:
        return False
    return True


def _can_reach(account: str, directory: Path) -> bool:
    """Return whether an account may enter all parents of a directory."""
    entry = pwd.getpwnam(account)
    for parent in directory.resolve().parents:
        if parent.exists():
            status = parent.stat()
            bit = (
                0o100 if status.st_uid == entry.pw_uid else 0o010 if status.st_gid == entry.pw_gid else 0o001
            )
            if entry.pw_uid and not status.st_mode & bit:
                return False
    return True


def check_printable(**values: object) -> None:
    """Check values that become parts of mosquitto.conf and of the unit.

    Args:
        **values: the values, by name of the option.

    Raises:
        ConfigError: a value has a line break or another control character, which would add lines.
    """
    for name, value in values.items():
        if not str(value).isprintable():
            raise ConfigError(
                f"{name} is {str(value)!r}, expected no line breaks and no other control characters; choose "
                "another name"
            )


def write_configuration(
    directory: Path,
    port: int,
    mosquitto: str,
    bind: str = "",
    user: str = "",
    limits: BrokerLimits | None = None,
    authority: Path | None = None,
) -> None:
    """Write the broker's mosquitto.conf, acl and mosquitto.service, and create the directory of its store.

    If the broker has another account than this process, that account receives access to the files that it
    needs.

    Args:
        directory: directory with the keys of `create_key_directory`.
        mosquitto: path of the program.
        bind: address to listen on. Empty listens on all addresses.
        user: account of the broker, see `choose_account`. Empty uses the account of this process.
        limits: limits of the broker. None uses `choose_limits`.
        authority: directory of ca.key. None if it is `directory`.
    """
    directory = directory.resolve()
    owner = getpass.getuser()
    limits = limits or choose_limits()
    user = user or owner
    hidden = [directory / name for name in HIDDEN_FILES] + (
        [authority.resolve() / "ca.key"] if authority else []
    )
    (directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
    values = {
        "directory": directory,
        "port": port,
        "bind": f" {bind}" if bind else "",
        "mosquitto": mosquitto,
        "aggregator": AGGREGATOR_ID,
        "watcher": WATCHER_ID,
        "user": user,
        "owner": owner,
        "memory_limit": limits.memory_mb * 2**20,
        "memory_max": limits.memory_mb + TLS_MEMORY_MB,
        "max_connections": limits.connections,
        "max_queued_bytes": MAX_QUEUED_BYTES,
        "files": 2 * limits.connections,
        "inaccessible": "\n".join(f"InaccessiblePaths=-{path}" for path in hidden),
        "capabilities": "CAP_NET_BIND_SERVICE" if port < 1024 else "",
        "prefix": TOPIC_PREFIX,
    }
    for name, text in (
        ("mosquitto.conf", CONF_TEMPLATE),
        ("acl", ACL_TEMPLATE),
        ("mosquitto.service", BROKER_UNIT_TEMPLATE),
    ):
        write_atomic(directory / name, text.format(**values).encode(), PUBLIC_MODE)
    if user != owner:
        _grant_access(directory, user)


def _grant_access(directory: Path, account: str) -> None:
    """Let an account read the files that the broker needs.

    The account owns only the broker's store. It can change neither the keys nor the access list.
    """
    entry = pwd.getpwnam(account)
    directory.chmod(directory.stat().st_mode | 0o011)
    os.chown(directory / "server.key", -1, entry.pw_gid)
    (directory / "server.key").chmod(0o640)
    os.chown(directory / "data", entry.pw_uid, entry.pw_gid)


def has_watcher_account(directory: Path) -> bool:
    """Return whether the access list in a directory has the account of monitors.

    The access list of an older version does not have it. The result is True if there is no access list.
    """
    try:
        return f"user {WATCHER_ID}" in (directory / "acl").read_text().splitlines()
    except OSError:
        return True  # Reading the keys of this directory raises the error about the missing files
