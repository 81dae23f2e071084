"""Renders the certificate as one HTML page without scripts, fonts or other files.

The page is light or dark, as the reader's system is configured.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from firmware_export.firmware.latency import format_milliseconds_range
from firmware_export.firmware.project import fill_placeholders
from firmware_export.quantize.task_figures import FIGURE_NAMES

TableRow = Sequence[str]
CLOCK_MHZ = 100
"""Clock for which the report computes milliseconds. A reader can scale them to a board's clock."""


def render_certificate_html(certificate: Mapping[str, Any]) -> str:
    """Return the HTML page of a certificate. The page does not depend on its entry `files`."""
    target_cost = next(
        (cost for cost in certificate["cost"] if cost["target"] == certificate["target"]), None
    )
    accuracy = certificate["accuracy"]
    figures = [
        (name, _format_percent(accuracy[key]))
        for name, key in (
            ("int8 accuracy", "accuracy_int8"),
            ("float accuracy", "accuracy_float"),
            ("same answer", "agreement"),
        )
        if accuracy[key] is not None
    ]
    figures += _list_task_figures(certificate.get("task", {}))
    if target_cost:
        figures += [
            ("flash", _format_bytes(target_cost["flash_bytes"])),
            ("RAM", _format_bytes(target_cost["ram_bytes"])),
            ("stack", _format_bytes(target_cost["stack_bytes"])),
        ]
        if target_cost["instructions_mean"]:
            figures.append(("instructions", f"{target_cost['instructions_mean']:,}"))
            figures.append(
                (f"at {CLOCK_MHZ} MHz", f"{_format_milliseconds(target_cost['instructions_mean'])} ms")
            )
    template = (files("firmware_export") / "templates" / "report.html.in").read_text()
    warnings = "".join(f"<p><b>Warning:</b> {escape(warning)}.</p>\n" for warning in certificate["warnings"])
    sections = [
        warnings + _render_parity(certificate),
        *([_render_classes(accuracy)] if accuracy["by_class"] else []),
        _render_costs(certificate),
        *_render_estimates(certificate.get("estimates", ())),
        *_render_layers(certificate["layers"]),
        _render_model(certificate),
    ]
    return fill_placeholders(
        template,
        {
            "TITLE": f"Model for {escape(certificate['target'])}",
            "SUBTITLE": f"Measured on {accuracy['samples']:,} {_describe_inputs(certificate)}. edgefl "
            f"{escape(certificate['edgefl'])}.",
            "FIGURES": "".join(f"<div>{name}<b>{value}</b></div>" for name, value in figures),
            "SECTIONS": "\n".join(sections),
        },
    )


def _list_task_figures(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a model that is no classifier, by their names."""
    figures = [
        (f"{kind} {name}", f"{task[f'{key}_{kind}']:.3f}")
        for key, name in FIGURE_NAMES.items()
        for kind in ("int8", "float")
        if task.get(f"{key}_{kind}") is not None
    ]
    if "threshold" in task:
        figures.append(("alarm threshold", f"{task['threshold']:,}"))
    return figures


def _describe_inputs(certificate: Mapping[str, Any]) -> str:
    """Return a noun for the golden inputs. An older certificate does not have their origin."""
    nouns = {"random": "random inputs, which prove bytes only", "file": "samples"}
    return nouns.get(certificate["golden"].get("inputs", ""), "samples of the device's own data")


def _format_percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _format_milliseconds(instructions: int) -> str:
    """Return the duration of instructions at CLOCK_MHZ and one instruction per cycle."""
    return f"{instructions / (1000 * CLOCK_MHZ):,.2f}"


def _format_bytes(size: int) -> str:
    return f"{size:,} B" if size < 10_000 else f"{size / 1024:.1f} KB"


def _render_table(
    head: Sequence[str], rows: Sequence[TableRow], numbers: Sequence[int], bar: int = -1
) -> str:
    """Return a table.

    Columns in `numbers` are aligned right. Column `bar` holds a share from 0 to 1, which is drawn as a bar.
    """

    def render_cell(index: int, text: str) -> str:
        if index == bar:
            return f'<td class="bar"><span style="width:{100 * float(text):.1f}%"></span></td>'
        return f'<td class="number">{escape(text)}</td>' if index in numbers else f"<td>{escape(text)}</td>"

    heads = "".join(
        f'<th class="number">{name}</th>' if i in numbers else f"<th>{name}</th>"
        for i, name in enumerate(head)
    )
    body = "".join(
        f"<tr>{''.join(render_cell(i, text) for i, text in enumerate(row))}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{heads}</tr>\n{body}</table></div>'


def _render_parity(certificate: Mapping[str, Any]) -> str:
    rows = [
        (result["place"], result["status"], f"{result['samples']:,}", result["tools"] or result["reason"])
        for result in certificate["parity"]
    ]
    table = _render_table(("where", "outputs", "samples", "tools"), rows, (2,))
    return (
        "<h2>The same bytes everywhere</h2>\n<p>Every output byte of the samples in the table, "
        f"compared with tflite-micro's. A place with fewer samples ran the first of them.</p>\n{table}"
    )


def _render_classes(accuracy: Mapping[str, Any]) -> str:
    rows = [
        (
            str(row["label"]),
            f"{row['samples']:,}",
            _format_percent(row["accuracy_float"]),
            _format_percent(row["accuracy_int8"]),
            str(row["accuracy_int8"]),
        )
        for row in accuracy["by_class"]
    ]
    rows.append(
        (
            "all",
            f"{accuracy['samples']:,}",
            _format_percent(accuracy["accuracy_float"]),
            _format_percent(accuracy["accuracy_int8"]),
            str(accuracy["accuracy_int8"]),
        )
    )
    return (
        f"<h2>Accuracy by "
        f"class</h2>\n{_render_table(('class', 'samples', 'float', 'int8', ''), rows, (1, 2, 3), 4)}"
    )


def _render_costs(certificate: Mapping[str, Any]) -> str:
    rows = [
        tuple(
            [cost["target"]]
            + [f"{cost[key]:,}" for key in ("flash_bytes", "ram_bytes", "stack_bytes")]
            + [f"{cost[key]:,}" if cost[key] else "" for key in ("instructions_mean", "instructions_worst")]
            + [_format_milliseconds(cost["instructions_mean"]) if cost["instructions_mean"] else ""]
        )
        for cost in certificate["cost"]
    ]
    table = _render_table(
        (
            "target",
            "flash, bytes",
            "RAM, bytes",
            "stack, bytes",
            "instructions, mean",
            "worst",
            f"mean, ms at {CLOCK_MHZ} MHz",
        ),
        rows,
        range(1, 7),
    )
    budget = certificate["budget"]
    limits = [
        f"{budget[key]:,} bytes of {name}"
        for key, name in (("ram_bytes", "RAM"), ("flash_bytes", "flash"))
        if budget[key]
    ]
    within = (
        f" The model fits the budget of {' and '.join(limits)}. RAM includes the stack." if limits else ""
    )
    tflm = certificate["tflm"]
    return (
        "<h2>Resources</h2>\n<p>Bytes of the model's code, constants and buffers. QEMU counts the "
        f"instructions of an inference.{within} RAM includes input and output, as does TensorFlow Lite "
        f"Micro's arena of {tflm['arena_bytes']:,} bytes for the same model. Milliseconds are computed for "
        f"a clock of {CLOCK_MHZ} MHz and one instruction per cycle. They are not measured: a core that "
        f"waits for its flash takes longer.</p>\n{table}"
    )


def _render_estimates(estimates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the section of the boards. The page of a certificate without estimates has no such section."""
    if not estimates:
        return []
    rows = [
        (
            row["board"],
            row["target"],
            f"{row['mhz']:,}",
            f"{row['cycles_low']:.2f} to {row['cycles_high']:.2f}",
            format_milliseconds_range(row["ms_low"], row["ms_high"]),
            row["source"],
        )
        for row in estimates
    ]
    head = ("board", "core", "MHz", "cycles per instruction", "estimate", "cycles from")
    return [
        "<h2>Boards</h2>\n<p>Estimates from the mean instructions. Nothing was run on these boards. The "
        "cycles per instruction are those of another engine, whose latency on the board is published and "
        f"whose instructions were counted in QEMU.</p>\n{_render_table(head, rows, (2, 3, 4))}"
    ]


def _render_layers(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    sections = []
    for key, title, unit in (
        ("instructions", "Instructions by layer", "instructions"),
        ("weight_bytes", "Flash by layer", "weights, bytes"),
        ("output_bytes", "RAM by layer", "output, bytes"),
    ):
        most = max((layer[key] for layer in layers), default=0)
        if most:
            rows = [
                (layer["name"], layer["op"], layer["part"], f"{layer[key]:,}", str(layer[key] / most))
                for layer in layers
            ]
            sections.append(
                f"<h2>{title}</h2>\n{_render_table(('layer', 'operator', 'part', unit, ''), rows, (3,), 4)}"
            )
    return sections


def _describe_threshold(certificate: Mapping[str, Any]) -> str:
    if not (skipping := certificate["skipping"]):
        return "0: an expert is skipped only if its gate value is zero, which changes no byte"
    return (
        f"{certificate['threshold']:g}: accuracy {_format_percent(skipping['accuracy_int8'])}, the same "
        f"answer as without skipping in {_format_percent(skipping['agreement'])}; "
        f"{skipping['instructions_all_run']:,} instructions when all experts run"
    )


def _describe_value(value: Any) -> str:
    if isinstance(value, Mapping):  # the shares of a blend
        return ", ".join(f"{name} {_format_percent(share)}" for name, share in value.items())
    return str(value)


def _format_list(value: Any) -> str:
    """Return the value of an only input, or the values of several inputs."""
    return ", ".join(f"{item:g}" for item in (value if isinstance(value, Sequence) else [value]))


def _render_model(certificate: Mapping[str, Any]) -> str:
    model = certificate["model"]
    rows = [
        ("model.tflite", f"{model['bytes']:,} bytes, sha256 {model['sha256']}"),
        (
            "input",
            f"int8 {model['input_shape']}, scale {_format_list(model['input_scale'])}, zero point "
            f"{_format_list(model['input_zero_point'])}",
        ),
        ("operators", ", ".join(model["operators"])),
        ("parts", ", ".join(model["parts"])),
        *(
            (key.replace("_", " "), _describe_value(value))
            for key, value in certificate["quantization"].items()
        ),
        ("skip threshold", _describe_threshold(certificate)),
        (
            "golden outputs",
            f"{certificate['golden']['samples']:,} samples, sha256 {certificate['golden']['outputs_sha256']}",
        ),
    ]
    return f"<h2>The model</h2>\n{_render_table(('', ''), rows, ())}"
