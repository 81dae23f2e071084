"""mosquitto's configuration for real boards: TLS with a certificate for each device, access by user name, and limits.

Traps that cost days: `listener` stands before the options that belong to it (the other order opens port 1883 on all interfaces in
2.0.11); the default autosave, each half hour, loses retained messages on kill -9, and `autosave_on_changes` counts every message as
a change and writes the whole store, chunks on their way included, for each; `message_size_limit` acknowledges and drops,
`max_packet_size` refuses; the default queue of 1,000 messages drops acknowledged ones. What is lost of the last seconds on kill -9 its
owners say again: aggregator and devices publish their retained messages whenever their link comes up.
"""

import getpass
from pathlib import Path

from edgefl.files import write_atomic
from edgefl.security.authority import AGGREGATOR, WATCHER

CONF = """# edgefl's broker. Start it with: mosquitto -c {directory}/mosquitto.conf
# The account that owns the keys; it matters only when this is started as root.
user {user}
per_listener_settings false
listener {port}{bind}
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
"""
ACL = """# Who may say what. %u is the user name, which is the certificate's common name.
user {aggregator}
topic readwrite edgefl/v1/+/#
topic write homeassistant/+/+/+/config

# Monitors read what is told of rounds and devices, no model and no update, and write nothing: the patterns below, which count for
# everybody, are taken back.
user {watcher}
topic deny edgefl/v1/+/device/{watcher}/#
topic deny edgefl/v1/+/blob/#
topic read edgefl/v1/+/state
topic read edgefl/v1/+/clusters
topic read edgefl/v1/+/round/+/summary
topic read edgefl/v1/+/device/+/status
topic read edgefl/v1/+/device/+/metrics
topic read edgefl/v1/+/device/+/task
topic read edgefl/v1/+/device/+/receipt
topic read edgefl/v1/+/device/+/up/+/begin
topic read homeassistant/#

pattern read edgefl/v1/+/state
pattern read edgefl/v1/+/blob/+/+
pattern read edgefl/v1/+/round/+/summary
pattern read edgefl/v1/+/device/%u/status
pattern read edgefl/v1/+/device/%u/task
pattern read edgefl/v1/+/device/%u/receipt
pattern read edgefl/v1/+/device/%u/claim
pattern write edgefl/v1/+/device/%u/status
pattern write edgefl/v1/+/device/%u/metrics
pattern write edgefl/v1/+/device/%u/want
pattern write edgefl/v1/+/device/%u/claim
pattern write edgefl/v1/+/device/%u/up/+/+
"""
UNIT = """[Unit]
Description=edgefl's MQTT broker
After=network-online.target
Wants=network-online.target

[Service]
User={user}
ExecStart={mosquitto} -c {directory}/mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
NoNewPrivileges=true
ProtectSystem=strict
ReadWritePaths={directory}/data

[Install]
WantedBy=multi-user.target
"""


def write_configuration(directory: Path, port: int, mosquitto: str, bind: str = "") -> None:
    """Write mosquitto.conf, acl, mosquitto.service and the folder of what the broker keeps. `bind`: an address, else all."""
    directory = directory.resolve()
    (directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
    filled = {
        "directory": directory,
        "port": port,
        "bind": f" {bind}" if bind else "",
        "mosquitto": mosquitto,
        "aggregator": AGGREGATOR,
        "watcher": WATCHER,
        "user": getpass.getuser(),
    }
    for name, text in (("mosquitto.conf", CONF), ("acl", ACL), ("mosquitto.service", UNIT)):
        write_atomic(directory / name, text.format(**filled).encode())


def knows_watcher(directory: Path) -> bool:
    """Return whether the access list of `edgefl broker init` there, maybe of an older version, has the account of monitors."""
    try:
        return f"user {WATCHER}" in (directory / "acl").read_text().splitlines()
    except OSError:
        return True  # there is none: what is missing is said by who needs the keys
