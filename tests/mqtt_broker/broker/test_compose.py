"""The aggregator's Dockerfile and the compose file, as far as they can be checked without docker: paths,
commands, options, references.
"""

import json
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from edgefl.cli import main as cli
from edgefl.config import load_config
from edgefl.data.npz import load_shard

ROOT = Path(__file__).parents[3]
HERE = ROOT / "mqtt_broker" / "compose"
ENTRY = {
    "mqtt_broker/Dockerfile": ["edgefl"],
    "devices/Dockerfile": ["edgefl", "device", "start", "--state", "/device/state"],
}


@pytest.fixture(scope="module")
def compose():
    return pytest.importorskip("yaml").safe_load((HERE / "compose.yaml").read_text())


def instructions(dockerfile):
    text = (ROOT / dockerfile).read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def check_command(words):
    """Walk to the command that the words name and let it parse its options, without running it."""
    assert words[0] == "edgefl"
    command = cli.cli
    context = click.Context(cli.cli)
    words = list(words[1:])
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
        context = click.Context(found, parent=context)
    made = command.make_context(command.name, words)
    assert not made.args
    return made.params


def test_the_aggregators_image_is_the_devices_with_the_aggregators_extras():
    ours = instructions("mqtt_broker/Dockerfile")
    device = instructions("devices/Dockerfile")
    assert ours[:8] == device[:8]  # the stage that builds the wheel, and the base of the second
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installs,) = (words for name, words in ours[8:] if name == "RUN")
    wanted = installs.partition("[")[2].partition("]")[0].split(",")
    assert wanted == ["aggregator", "prometheus", "tensorboard"]
    assert set(wanted) <= extras.keys()
    told = dict(ours)
    assert told["USER"] == "10001"
    assert "useradd --uid 10001" in installs
    params = check_command([*json.loads(told["ENTRYPOINT"]), *json.loads(told["CMD"])])
    assert params["out"].parts[1] == "federation"
    ignored = [
        (ROOT / name / "Dockerfile.dockerignore").read_text().splitlines()[1:]
        for name in ("mqtt_broker", "devices")
    ]
    assert ignored[0] == ignored[1]


def test_what_compose_mounts_builds_and_waits_for_is_there(compose):
    services = compose["services"]
    volumes = compose["volumes"]
    assert services.keys() == {"broker", "shards", "aggregator", "pi-1", "pi-2", "dashboard"}
    for name, service in services.items():
        if "build" in service:
            context = (HERE / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert (HERE / source).is_file() if source.startswith(".") else source in volumes, (
                f"{name} mounts {source}"
            )
        assert set(service.get("depends_on", ())) <= services.keys()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), (
            "pages and metrics ask for no password"
        )
    assert load_config(HERE / "federation.toml").name == "compose"


@pytest.mark.parametrize("name", ["aggregator", "pi-1", "pi-2", "dashboard"])
def test_every_service_runs_a_command_that_there_is(compose, name):
    service = compose["services"][name]
    entry = service.get("entrypoint") or ENTRY[service["build"]["dockerfile"]]
    words = [str(word) for word in [*entry, *service.get("command", [])]]
    if words[1] not in cli.find_commands():
        pytest.skip(f"edgefl has no command {words[1]} yet")
    params = check_command(words)
    broker = params.get("broker") or params.get("url")
    assert broker == "mqtt://broker:1883", shlex.join(words)
    assert params.get("client_id", name) == name


def test_the_shards_are_where_the_devices_look(compose, tmp_path):
    """The service's own line, with another directory in the place of the volume."""
    pytest.importorskip("sklearn")
    python, option, code = compose["services"]["shards"]["entrypoint"]
    assert (python, option) == ("python", "-c")
    exec(compile(code.replace("/shards", str(tmp_path)), "shards", "exec"), {})
    config = load_config(HERE / "federation.toml")
    for name in ("pi-1", "pi-2"):
        command = compose["services"][name]["command"]
        place = Path(command[command.index("--data") + 1])
        assert place.parts[1] == "shards"
        shard = load_shard(tmp_path / place.relative_to("/shards"))
        assert shard.x_train.shape[1:] == config.model.input_shape
        assert shard.num_classes <= config.model.num_classes
