"""`edgefl models`: names, sources and options, without Keras."""

import inspect
import json
import subprocess
import sys
from importlib import import_module

import pytest
from click.testing import CliRunner

from edgefl.cli.commands.models import models
from edgefl.models import list_models
from edgefl.models.options import read_model_defaults


@pytest.mark.parametrize("name", list_models())
def test_options_are_those_of_the_function(name):
    function = name.replace("-", "_")
    signature = inspect.signature(getattr(import_module(f"edgefl.models.{function}"), function))
    own = {
        p.name: p.default
        for p in signature.parameters.values()
        if p.name not in ("input_shape", "num_classes")
    }
    assert all(signature.parameters[option].kind is inspect.Parameter.KEYWORD_ONLY for option in own)
    assert read_model_defaults(name) == own


def test_a_list_for_people_and_one_for_programs():
    found = json.loads(CliRunner().invoke(models, ["--json"]).output)
    assert list(found) == list(list_models())
    assert found["gate-cnn"]["options"] == {"filters1": 12, "filters2": 12, "hidden": 8, "dropout": 0.78}
    text = CliRunner().invoke(models, []).output
    assert 'options: padding = "auto", filters1 = 6, filters2 = 16' in text
    assert found["vgg16"]["source"] in text


def test_the_list_needs_no_tensorflow():
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from edgefl.cli.commands.models import models
models([])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "resnet20" in done.stdout
