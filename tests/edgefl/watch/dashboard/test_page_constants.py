"""Constants of the page that have a copy in Python."""

import json
import re
from importlib.resources import files

from edgefl.base.verdict import MODEL_KINDS


def test_page_names_the_kinds_of_models_in_the_order_of_the_metric():
    """The page shows a device that has ended before there is a verdict."""
    script = (files("edgefl.watch.dashboard") / "page" / "outcomes.js").read_text()
    (kinds,) = re.findall(r"const KINDS = (\[.*\]);", script)
    assert tuple(json.loads(kinds)) == MODEL_KINDS
