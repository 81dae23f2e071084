"""The aggregator's Dockerfile and the compose file, as far as they can be checked without docker: paths,
commands, options and references.
"""

import json
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from edgefl.base.config import load_config
from edgefl.cli import main as cli
from edgefl.data.npz import load_shard

ROOT = Path(__file__).parents[3]
COMPOSE_DIRECTORY = ROOT / "mqtt_broker" / "compose"
ENTRYPOINTS = {
    "mqtt_broker/Dockerfile": ["edgefl"],
    "devices/Dockerfile": ["edgefl", "device", "start", "--state", "/device/state"],
}


@pytest.fixture(scope="module")
def compose():
    return pytest.importorskip("yaml").safe_load((COMPOSE_DIRECTORY / "compose.yaml").read_text())


def list_instructions(dockerfile):
    text = (ROOT / dockerfile).read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def check_command(arguments):
    """Find the command that the arguments name and let it parse its options, without running it."""
    assert arguments[0] == "edgefl"
    command = cli.cli
    context = click.Context(cli.cli)
    arguments = list(arguments[1:])
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments.pop(0))
        assert found is not None
        command = found
        context = click.Context(found, parent=context)
    made = command.make_context(command.name, arguments)
    assert not made.args
    return made.params


def test_aggregator_image_extends_the_device_image_with_extras():
    aggregator = list_instructions("mqtt_broker/Dockerfile")
    device = list_instructions("devices/Dockerfile")
    assert aggregator[:8] == device[:8]  # the stage that builds the wheel, and the base of the second stage
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (installs,) = (arguments for name, arguments in aggregator[8:] if name == "RUN")
    installed_extras = installs.partition("[")[2].partition("]")[0].split(",")
    assert installed_extras == ["aggregator", "prometheus", "tensorboard"]
    assert set(installed_extras) <= extras.keys()
    values = dict(aggregator)
    assert values["USER"] == "10001"
    assert "useradd --uid 10001" in installs
    params = check_command([*json.loads(values["ENTRYPOINT"]), *json.loads(values["CMD"])])
    assert params["out"].parts[1] == "federation"
    ignored = [
        (ROOT / name / "Dockerfile.dockerignore").read_text().splitlines()[1:]
        for name in ("mqtt_broker", "devices")
    ]
    assert ignored[0] == ignored[1]


def test_compose_refers_to_existing_files_volumes_and_services(compose):
    services = compose["services"]
    volumes = compose["volumes"]
    assert services.keys() == {"broker", "shards", "aggregator", "pi-1", "pi-2", "dashboard"}
    for name, service in services.items():
        if "build" in service:
            context = (COMPOSE_DIRECTORY / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert (COMPOSE_DIRECTORY / source).is_file() if source.startswith(".") else source in volumes, (
                f"{name} mounts {source}"
            )
        assert set(service.get("depends_on", ())) <= services.keys()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), (
            "pages and metrics ask for no password"
        )
    assert load_config(COMPOSE_DIRECTORY / "federation.toml").name == "compose"


@pytest.mark.parametrize("name", ["aggregator", "pi-1", "pi-2", "dashboard"])
def test_compose_services_run_existing_commands(compose, name):
    service = compose["services"][name]
    entry = service.get("entrypoint") or ENTRYPOINTS[service["build"]["dockerfile"]]
    arguments = [str(word) for word in [*entry, *service.get("command", [])]]
    if arguments[1] not in cli.find_commands():
        pytest.skip(f"edgefl has no command {arguments[1]} yet")
    params = check_command(arguments)
    broker = params.get("broker") or params.get("url")
    assert broker == "mqtt://broker:1883", shlex.join(arguments)
    assert params.get("client_id", name) == name


def test_compose_saves_shards_where_the_devices_read_them(compose, tmp_path):
    """Runs the command of the service, with another directory in place of the volume."""
    pytest.importorskip("sklearn")
    python, option, code = compose["services"]["shards"]["entrypoint"]
    assert (python, option) == ("python", "-c")
    exec(compile(code.replace("/shards", str(tmp_path)), "shards", "exec"), {})
    config = load_config(COMPOSE_DIRECTORY / "federation.toml")
    for name in ("pi-1", "pi-2"):
        command = compose["services"][name]["command"]
        path = Path(command[command.index("--data") + 1])
        assert path.parts[1] == "shards"
        shard = load_shard(tmp_path / path.relative_to("/shards"))
        assert shard.x_train.shape[1:] == config.model.input_shape
        assert shard.num_classes <= config.model.num_classes
