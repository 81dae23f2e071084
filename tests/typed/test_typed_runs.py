"""Simulations and what is made of them, as their pages have them typed. Sizes are smaller than the pages',
and nothing else is.
"""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

# The configurations of the pages, of a size that takes seconds.
SMALLER = {
    '"fashion-mnist"': '"digits"',
    '"lenet5"': '"softmax"',
    "num_clients = 100\n": "num_clients = 4\n",
    "rounds = 20\n": "rounds = 5\n",
    "clients_per_round = 10\n": "clients_per_round = 2\n",
    "epochs = 5\n": "epochs = 1\n",
}
# Runs that a page has without saying how they were made; one Python makes all of them, for TensorFlow takes
# its time to start.
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


def smaller(text: str) -> str:
    for what, other in SMALLER.items():
        assert what in text, f"the page's configuration has no {what} any more"
        text = text.replace(what, other)
    return text


def test_commands(desk: Any, page: Callable[[str], Any]) -> None:
    commands = page("docs/reference/commands.md")
    desk.deal("pi-1.npz")
    desk.run(page("docs/reference/configuration.md").take("edgefl init"))
    desk.run(commands.take("edgefl simulate"))
    assert json.loads((desk / "summary.json").read_text())["clients"]
    desk.run(commands.take("mkdir -p"))
    for shell in ("bash", "fish", "zsh"):
        desk.run(commands.take(f"edgefl completion {shell}"))
    home = desk.directory.parent
    for place in (
        ".local/share/bash-completion/completions/edgefl",
        ".config/fish/completions/edgefl.fish",
        ".edgefl.zsh",
    ):
        assert "edgefl" in (home / place).read_text()


def test_measure(desk: Any, page: Callable[[str], Any]) -> None:
    measure = page("docs/contributing/benchmarks.md")
    (desk / "few.toml").write_text(measure.blocks("toml")[0])
    desk.run(measure.take("edgefl simulate few.toml"))
    desk.run(measure.take("edgefl simulate few.toml"))
    assert "one" in desk.run(measure.take("edgefl compare"))
    assert sorted(json.loads(desk.run(measure.take("edgefl compare")))) == ["one", "two"]
    assert {"run.json", "rounds.jsonl", "summary.json"} <= {
        path.name for path in (desk / "runs/one").iterdir()
    }


def test_simulate(desk: Any, page: Callable[[str], Any]) -> None:
    pytest.importorskip("matplotlib")
    simulate = page("docs/how-to/simulate.md")
    (desk / "federation.toml").write_text(smaller(simulate.blocks("toml")[0]))
    assert "mixture" in desk.run(simulate.take("edgefl simulate federation.toml"))
    for what in ("algorithms", "models", "datasets", "partitions"):
        assert desk.run(simulate.take(f"edgefl {what}"))
    assert "epochs" in desk.run(simulate.take("edgefl algorithms fedprox"))
    desk.run(
        simulate.take("edgefl partitions show"), {"fashion-mnist": "digits", "--clients 20": "--clients 4"}
    )
    desk.run(simulate.take("edgefl simulate federation.toml"))
    assert "int8" in desk.run(simulate.take("edgefl export --state"))
    assert "held-out samples" in desk.run(simulate.take("edgefl infer"))
    shutil.copytree(desk / "runs/clothes", desk / "runs/other", symlinks=True)
    desk.run(simulate.take("edgefl compare"))
    assert (desk / "heat.png").exists() and (desk / "compared.png").exists()


def test_report(desk: Any, page: Callable[[str], Any]) -> None:
    pytest.importorskip("matplotlib")
    report = page("docs/how-to/report.md")
    (desk / "federation.toml").write_text(FEW)
    desk.run(
        report.take("edgefl simulate"),
        {"--evaluate-every 5 --layers-over 4": "--evaluate-every 2 --layers-over 1"},
    )
    desk.run(report.take("edgefl report runs/x"))
    assert "Training loss" in (desk / "report.html").read_text()
    assert "aem-6" in desk.run(report.take("edgefl report --list"))
    made = []
    for out, algorithm, options, partition in RUNS:
        name = out.replace("/", "-") + ".toml"
        (desk / name).write_text(
            FEW.replace('"fedavg"', f'"{algorithm}"\n{options}').replace('"dirichlet"', partition)
        )
        made.append(f"{name} --out {out}{' --evaluate-every 1' * (algorithm == 'clustered')}")
    (desk / "make.py").write_text(MAKE)
    (desk / "made").write_text("\n".join(made))
    desk.run("python make.py < made")
    for other in ("b", "c"):  # as runs with other seeds would be
        shutil.copytree(desk / "runs/a", desk / "runs" / other)
    desk.run(report.take("edgefl report --figure aem-6"))
    desk.run(report.take("edgefl report --figure clustered-6"))
    assert json.loads(desk.run(report.take("edgefl report --figure pfl-moe-3")))
    assert (desk / "aem-6.pdf").exists() and (desk / "clusters.svg").exists()


def test_privacy_plan(desk: Any, page: Callable[[str], Any]) -> None:
    pytest.importorskip("dp_accounting")
    private = page("docs/how-to/keep-updates-private.md")
    said = desk.run(private.take("edgefl privacy plan"))
    assert "0.645" in said
