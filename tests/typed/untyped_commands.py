"""Commands of the documentation that no test types, by page, each with a reason. `...` stands for any ending.

test_docs.py still checks that commands of edgefl have the documented options.
"""

FIVE = "tests/test_readme.py types the five commands of a federation"
INSTALLS = "installs packages into the environment that runs the tests; .ci/run installs all extras"
LONG = "takes minutes to hours; tests/edgefl/lab/reproduce runs a small cut of every experiment"
BENCH = "a measurement of minutes; tests/edgefl/cli/bench runs it with few of everything"
PEERS = "a measurement of minutes; tests/benchmarks/test_*.py run it with few of everything"
WEEK = "takes minutes; tests/edgefl/simulation/test_virtual_time.py plays smaller fleets"
FIRMWARE = "test_typed_firmware.py types the same of docs/results/firmware.md"
SYSTEMD = "needs a machine that systemd booted; mosquitto gets the signal that it would send"
FAR = "needs a second machine"
ROOT = "needs root, debootstrap and 35 minutes: a Debian for arm64 in /root"
CLUSTER = (
    "needs three machines; tests/mqtt_broker/broker/test_nats_cluster.py runs three servers with this file"
)
FAULTS = "takes minutes; tests/mqtt_broker/test_fault_suite.py, which it runs, is among the tests"
DOCKER = (
    "needs a docker daemon; tests/devices/test_dockerfile.py and tests/mqtt_broker/broker/test_compose.py "
    "check what it reads"
)
SUBSCRIBER = "a program of mosquitto's; `edgefl watch`, which reads the same topics, is typed"
CHECKS = "lints, builds the site or runs tests; .ci/run and the tests themselves do so"
OPENS = "opens this machine to its network; the README's is typed on loopback"

DETECTS = "needs a federation of minutes; tests/devices/test_detect.py runs the same over a real broker"

UNTYPED_COMMANDS: dict[str, dict[str, str]] = {
    "docs/how-to/detect-anomalies.md": {
        "edgefl device detect ...": DETECTS,
        "edgefl watch ...": DETECTS,
    },
    "docs/contributing/release.md": {
        "make ...": CHECKS,
        "python3 -m venv ...": INSTALLS,
        "/tmp/edgefl-0.3.0/bin/pip install ...": INSTALLS,
        "/tmp/edgefl-0.3.0/bin/edgefl ...": "tests/test_distribution.py runs them in such an environment",
        "git push ...": FAR,
    },
    "docs/contributing/emulate-an-arm-board.md": {
        "apt-get install -y debootstrap ...": ROOT,
        "apt-get install -y qemu-user ...": ROOT,
        "test -e /proc/sys/fs/binfmt_misc/...": ROOT,
        "debootstrap --arch=arm64 ...": ROOT,
        "DEBOOTSTRAP_DIR=...": ROOT,
        "mount --bind /proc /root/arm64/proc ...": ROOT,
        "cp /etc/resolv.conf ...": ROOT,
        "git clone . /root/arm64/src": ROOT,
        "chroot /root/arm64 ...": ROOT,
        "for i in 0 1 2 3; do printf ...": ROOT,
        "cp shard.npz /root/arm64/root/...": ROOT,
        "export QEMU_CPU=...": ROOT,
        "unshare -m sh -c ...": ROOT,
    },
    "docs/contributing/benchmarks.md": {
        "edgefl reproduce ...": LONG,
        "python -m tests.support.result_pages...": "tests/test_result_pages.py covers it",
        "edgefl bench device ...": BENCH,
        "edgefl bench wire ...": BENCH,
        "python -m tests.benchmarks simulate ...": PEERS,
        "python -m tests.benchmarks fleet ...": PEERS,
        "python -m tests.benchmarks accuracy ...": PEERS,
        "python -m tests.benchmarks anomaly ...": PEERS,
        "python -m tests.benchmarks anomaly-mqtt ...": PEERS,
        "python -m tests.benchmarks regression ...": PEERS,
        "python -m tests.benchmarks firmware ...": FIRMWARE,
        "python -m tests.benchmarks int8 ...": PEERS,
        "python -m tests.benchmarks tuning ...": PEERS,
        "python -m tests.benchmarks monitor ...": PEERS,
        "python -m tests.benchmarks dashboard ...": PEERS,
        "python -m tests.benchmarks fleet-training ...": PEERS,
        "python -m tests.benchmarks calls ...": PEERS,
        "python -m tests.benchmarks rooms ...": "tests/benchmarks/test_call_path.py runs it",
        "python -m tests.benchmarks steps ...": "tests/benchmarks/test_steps_bench.py tests its parts",
    },
    "docs/decisions/0019-the-aggregator-drives-a-round-server.md": {
        "python -m tests.benchmarks calls ...": PEERS
    },
    "docs/how-to/simulate.md": {"edgefl reproduce ...": LONG},
    "docs/how-to/report.md": {"pip install ...": INSTALLS},
    "docs/how-to/go-to-a-microcontroller.md": {"apt-get install ...": INSTALLS, "pip install ...": INSTALLS},
    "docs/how-to/enrol-a-fleet.md": {
        "scp pi-7.enrol pi-7.local:": FAR,
        "systemctl restart edgefl-broker": SYSTEMD,
    },
    "docs/how-to/connect-other-tools.md": {"pip install ...": INSTALLS, "docker compose ...": DOCKER},
    "docs/how-to/run-a-cluster.md": {"nats-server -c nats.conf": CLUSTER},
    "docs/how-to/run-on-a-board.md": {"docker ...": DOCKER, "journalctl ...": SYSTEMD},
    "docs/how-to/watch-a-federation.md": {"pip install ...": INSTALLS, "ssh -L ...": FAR},
    "docs/explanation/what-a-fleet-survives.md": {"make test-faults": FAULTS},
    "docs/results/accuracy.md": {
        "python3 -m venv ...": INSTALLS,
        "~/flwr/bin/pip install ...": INSTALLS,
        "python -m tests.benchmarks accuracy ...": PEERS,
    },
    "docs/results/anomalies.md": {
        "python -m tests.benchmarks anomaly ...": PEERS,
        "python -m tests.benchmarks anomaly-mqtt ...": PEERS,
    },
    "docs/results/device.md": {"edgefl bench wire ...": BENCH},
    "docs/results/fleet.md": {
        "python -m tests.benchmarks fleet ...": PEERS,
        "python -m tests.benchmarks fleet-training ...": PEERS,
    },
    "docs/results/int8.md": {
        "python -m tests.benchmarks int8 ...": PEERS,
        "python -m tests.benchmarks tuning ...": PEERS,
    },
    "docs/results/lab-notes/fleet.md": {
        "python -m tests.benchmarks fleet ...": PEERS,
        "python -m tests.benchmarks fleet-training ...": PEERS,
    },
    "docs/results/lab-notes/outcomes.md": {"edgefl reproduce outcomes ...": LONG},
    "docs/results/lab-notes/papers.md": {
        "edgefl reproduce NAME ...": LONG,
    },
    "docs/results/lab-notes/simulate.md": {
        "python -m tests.benchmarks simulate ...": PEERS,
        "edgefl simulate federation.toml --out runs/week": WEEK,
    },
    "docs/results/outcomes.md": {"edgefl reproduce outcomes ...": LONG},
    "docs/results/regression.md": {"python -m tests.benchmarks regression ...": PEERS},
    "docs/results/reproduce.md": {"edgefl reproduce NAME ...": LONG},
    "docs/results/simulate.md": {
        "python -m tests.benchmarks simulate ...": PEERS,
        "python -m tests.benchmarks evaluation ...": PEERS,
        "edgefl simulate federation.toml --out runs/week ...": WEEK,
    },
    "docs/tutorial/two-boards.md": {
        "python3 -m venv ...": INSTALLS,
        ". .venv/bin/activate": INSTALLS,
        "pip install ...": INSTALLS,
        "mosquitto_sub ...": SUBSCRIBER,
        "edgefl broker start --bind ...": OPENS,
    },
    "README.md": {
        "make install": INSTALLS,
        ". .venv/bin/activate": INSTALLS,
        "make demo": "tests/edgefl/cli/demo/test_demo.py runs it",
        "edgefl data split ...": FIVE,
        "edgefl data show ...": FIVE,
        "edgefl init --data pi-1.npz --data pi-2.npz": FIVE,
        "edgefl broker start": FIVE,
        "edgefl aggregator start": FIVE,
        "edgefl device start --id pi-1 --data pi-1.npz": FIVE,
        "make test": "runs the tests, this one too",
        "edgefl device start --id pi-2 --data pi-2.npz": FIVE,
    },
}
