"""`edgefl models`: names, sources and options, without Keras."""

import inspect
import json
import subprocess
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner

from edgefl.cli.commands.models import models
from edgefl.program.models.zoo.catalog import list_models, read_model_defaults


@pytest.mark.parametrize("name", list_models())
def test_options_match_the_parameters_of_the_model_function(name):
    function = name.replace("-", "_")
    signature = inspect.signature(getattr(import_module(f"edgefl.program.models.zoo.{function}"), function))
    expected = {
        p.name: p.default
        for p in signature.parameters.values()
        if p.name not in ("input_shape", "num_classes")
    }
    assert all(signature.parameters[option].kind is inspect.Parameter.KEYWORD_ONLY for option in expected)
    assert read_model_defaults(name) == expected


def test_models_are_listed_as_text_and_json():
    rows = json.loads(CliRunner().invoke(models, ["--json"]).output)
    assert list(rows) == list(list_models())
    assert rows["gate-cnn"]["options"] == {"filters1": 12, "filters2": 12, "hidden": 8, "dropout": 0.78}
    text = CliRunner().invoke(models, []).output
    assert 'options: padding = "auto", filters1 = 6, filters2 = 16' in text
    assert rows["vgg16"]["source"] in text


def test_list_works_without_tensorflow():
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from edgefl.cli.commands.models import models
models([])
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    assert "resnet20" in completed.stdout
