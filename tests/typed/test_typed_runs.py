"""The commands of the pages about simulations and reports. Only the sizes are smaller than on the pages."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# Replacements that make the configurations of the pages small enough to run in seconds.
SMALLER = {
    '"fashion-mnist"': '"digits"',
    '"lenet5"': '"softmax"',
    "num_clients = 100\n": "num_clients = 4\n",
    "rounds = 20\n": "rounds = 5\n",
    "clients_per_round = 10\n": "clients_per_round = 2\n",
    "epochs = 5\n": "epochs = 1\n",
}
# Makes the runs that a page uses without showing how they were made. One Python process makes all of them,
# because TensorFlow starts slowly.
MAKE = """
import sys
from edgefl.cli.main import cli
for words in sys.stdin.read().splitlines():
    cli(["simulate", *words.split()], standalone_mode=False)
"""
FEW = """
[federation]
name = "few"
rounds = 2
[model]
name = "softmax"
[algorithm]
name = "fedavg"
epochs = 1
[data]
name = "digits"
[partition]
name = "dirichlet"
num_clients = 4
"""
FEWER = "samples = 40\ntest_samples = 20"
RUNS = (
    (
        "runs/aem-reduced/one",
        "aem",
        "epsilon = 0.3\nnum_experts = 2\nlocal_epochs = 2\ngate_epochs = 2",
        '"p-majority"\np = 0.5\n' + FEWER,
    ),
    (
        "runs/a",
        "clustered",
        "",
        '"tasks"\ntasks = 2\nnum_tasks = 4\nclusters = 2\n' + FEWER,
    ),
    ("runs/mf", "pfl-mf", "adapt_epochs = 1\ngate_epochs = 1", '"dirichlet"'),
    ("runs/mfe", "pfl-mfe", "adapt_epochs = 1\ngate_epochs = 1", '"dirichlet"'),
)


def make_smaller(text: str) -> str:
    for old, new in SMALLER.items():
        assert old in text, f"the page's configuration has no {old} any more"
        text = text.replace(old, new)
    return text


def write_digits(workspace: Any, name: str) -> None:
    workspace.run("edgefl data split digits --clients 2 --samples 60 -o digits")
    shutil.move(workspace / "digits/pi-1.npz", workspace / name)


def test_commands_of_the_commands_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    commands = page("docs/reference/commands.md")
    workspace.write_shards("pi-1.npz")
    workspace.run(page("docs/reference/configuration.md").take("edgefl init"))
    workspace.run(commands.take("edgefl simulate"))
    assert json.loads((workspace / "summary.json").read_text())["clients"]
    workspace.run(commands.take("mkdir -p"))
    for shell in ("bash", "fish", "zsh"):
        workspace.run(commands.take(f"edgefl completion {shell}"))
    home = workspace.directory.parent
    for path in (
        ".local/share/bash-completion/completions/edgefl",
        ".config/fish/completions/edgefl.fish",
        ".edgefl.zsh",
    ):
        assert "edgefl" in (home / path).read_text()


def test_commands_of_the_benchmarks_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    measure = page("docs/contributing/benchmarks.md")
    (workspace / "few.toml").write_text(measure.blocks("toml")[0])
    workspace.run(measure.take("edgefl simulate few.toml"))
    workspace.run(measure.take("edgefl simulate few.toml"))
    assert "one" in workspace.run(measure.take("edgefl compare"))
    assert sorted(json.loads(workspace.run(measure.take("edgefl compare")))) == ["one", "two"]
    assert {"run.json", "rounds.jsonl", "summary.json"} <= {
        path.name for path in (workspace / "runs/one").iterdir()
    }


def test_commands_of_the_simulation_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    pytest.importorskip("matplotlib")
    simulate = page("docs/how-to/simulate.md")
    (workspace / "federation.toml").write_text(make_smaller(simulate.blocks("toml")[0]))
    assert "mixture" in workspace.run(simulate.take("edgefl simulate federation.toml"))
    for listing in ("algorithms", "models", "datasets", "partitions"):
        assert workspace.run(simulate.take(f"edgefl {listing}"))
    assert "epochs" in workspace.run(simulate.take("edgefl algorithms fedprox"))
    workspace.run(
        simulate.take("edgefl partitions show"), {"fashion-mnist": "digits", "--clients 20": "--clients 4"}
    )
    workspace.run(simulate.take("edgefl simulate federation.toml"))
    assert "int8" in workspace.run(simulate.take("edgefl export --state"))
    assert "held-out samples" in workspace.run(simulate.take("edgefl infer"))
    choice = page("docs/how-to/choose-the-model.md")
    client = {"--state state": "--state runs/clothes/mixtures/client-000"}
    assert "int8" in workspace.run(choice.take("edgefl export --state"), client)
    write_digits(workspace, "new.npz")
    assert "held-out samples" in workspace.run(simulate.take("edgefl personalize"))
    assert "int8" in workspace.run(simulate.take("edgefl export --state"))
    shutil.copytree(workspace / "runs/clothes", workspace / "runs/other", symlinks=True)
    workspace.run(simulate.take("edgefl compare"))
    assert (workspace / "heat.png").exists() and (workspace / "compared.png").exists()


def test_commands_of_the_page_of_experiments_work(workspace: Any, page: Callable[[str], Any]) -> None:
    experiments = page("docs/results/reproduce.md")
    assert "clustered" in workspace.run(experiments.take("edgefl reproduce --list"))


def test_commands_of_the_fedmix_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    fedmix = page("docs/algorithms/fedmix.md")
    rates = '"fedmix"\nserver_learning_rate = 0.01\n'
    (workspace / "federation.toml").write_text(FEW.replace('"fedavg"\n', rates))
    write_digits(workspace, "new.npz")
    with np.load(workspace / "new.npz") as arrays:
        np.savez(workspace / "unlabelled.npz", x=arrays["x"])
    workspace.run(fedmix.take("edgefl simulate"))
    assert "mixture" in workspace.run(fedmix.take("edgefl personalize"))
    assert "by the labels that were ignored" in workspace.run(fedmix.take("edgefl personalize"))
    answer = json.loads(workspace.run(fedmix.take("edgefl personalize")))
    assert len(answer["predictions"]) == answer["samples"] > 0


def test_commands_of_the_report_page_work(workspace: Any, page: Callable[[str], Any]) -> None:
    pytest.importorskip("matplotlib")
    report = page("docs/how-to/report.md")
    (workspace / "federation.toml").write_text(FEW)
    workspace.run(
        report.take("edgefl simulate"),
        {"--evaluate-every 5 --layers-over 4": "--evaluate-every 2 --layers-over 1"},
    )
    workspace.run(report.take("edgefl report runs/x"))
    assert "Training loss" in (workspace / "report.html").read_text()
    assert "aem-6" in workspace.run(report.take("edgefl report --list"))
    commands_to_run = []
    for out, algorithm, options, partition in RUNS:
        name = out.replace("/", "-") + ".toml"
        (workspace / name).write_text(
            FEW.replace('"fedavg"', f'"{algorithm}"\n{options}').replace('"dirichlet"', partition)
        )
        commands_to_run.append(f"{name} --out {out}{' --evaluate-every 1' * (algorithm == 'clustered')}")
    (workspace / "make.py").write_text(MAKE)
    (workspace / "made").write_text("\n".join(commands_to_run))
    workspace.run("python make.py < made")
    for name in ("b", "c"):  # copies stand for runs with other seeds
        shutil.copytree(workspace / "runs/a", workspace / "runs" / name)
    workspace.run(report.take("edgefl report --figure aem-6"))
    workspace.run(report.take("edgefl report --figure clustered-6"))
    assert json.loads(workspace.run(report.take("edgefl report --figure pfl-moe-3")))
    assert (workspace / "aem-6.pdf").exists() and (workspace / "clusters.svg").exists()


def test_command_of_the_privacy_page_works(workspace: Any, page: Callable[[str], Any]) -> None:
    pytest.importorskip("dp_accounting")
    private = page("docs/how-to/keep-updates-private.md")
    output = workspace.run(private.take("edgefl privacy plan"))
    assert "0.645" in output
