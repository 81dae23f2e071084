"""`verify_bundle` names damaged, edited and forged files, and targets that cannot be run."""

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from edgefl.base.errors import ExportError
from firmware_export.certificate import verify
from firmware_export.certificate.golden import decode_golden, encode_golden
from firmware_export.certificate.verify import verify_bundle
from firmware_export.firmware.report_html import render_certificate_html

pytest.importorskip("tflite_micro")


def read_certificate(out: Path) -> dict:
    return json.loads((out / "certificate.json").read_text())


def test_intact_bundle_passes_verification(bundle) -> None:
    result = verify_bundle(bundle)
    assert not result.unchecked and any("cortex-m7" in line for line in result.checked)


def change_file(out: Path, name: str, change) -> None:
    (out / name).write_bytes(change((out / name).read_bytes()))


def forge_file(out: Path, name: str, change) -> None:
    """Change a file and put its new digest into the certificate."""
    change_file(out, name, change)
    certificate = read_certificate(out)
    certificate["files"][name] = sha256((out / name).read_bytes()).hexdigest()
    (out / "certificate.json").write_text(json.dumps(certificate))


@pytest.mark.parametrize(
    "name",
    [
        "model.tflite",
        "c/model_weights.c",
        "firmware/link.ld",
        "golden.npz",
        "report.html",
        "tflm/model_data.c",
    ],
)
def test_a_damaged_file_is_named(copy, name) -> None:
    change_file(copy, name, lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(ExportError, match=f"^{re.escape(name)} is not the exported file"):
        verify_bundle(copy)


def test_a_missing_file_is_named(copy) -> None:
    (copy / "c" / "model.h").unlink()
    with pytest.raises(ExportError, match=r"c/model\.h cannot be read"):
        verify_bundle(copy)


def test_edited_c_is_named_despite_an_updated_digest(copy) -> None:
    forge_file(copy, "c/model.c", lambda blob: blob.replace(b"return best;", b"return 0;"))
    with pytest.raises(ExportError, match=r"c/model\.c does not follow from model\.tflite"):
        verify_bundle(copy)


def test_edited_outputs_are_detected(copy) -> None:
    def flip(blob: bytes) -> bytes:
        golden = decode_golden(blob)
        outputs = golden.outputs.copy()
        outputs[3, 0] ^= 1
        return encode_golden(replace(golden, outputs=outputs))

    forge_file(copy, "golden.npz", flip)
    with pytest.raises(ExportError, match="outputs differ from tflite-micro's outputs"):
        verify_bundle(copy)


@pytest.mark.parametrize(
    "path",
    [("accuracy", "accuracy_int8"), ("cost", 2, "flash_bytes"), ("tflm", "arena_bytes"), ("model", "bytes")],
)
def test_an_edited_figure_is_named(bundle, copy, path, monkeypatch) -> None:
    certificate = read_certificate(copy)
    entry = certificate
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] += 1
    (copy / "certificate.json").write_text(json.dumps(certificate))
    truth = {key: value for key, value in read_certificate(bundle).items() if key != "files"}
    # test_intact_bundle_passes_verification makes the real certificate again
    monkeypatch.setattr(verify, "make_certificate", lambda *arguments, **options: truth)
    if path[0] == "tflm":
        monkeypatch.setattr(verify, "derive_files", lambda *arguments: {"report.html": b""})
    with pytest.raises(ExportError, match=rf"certificate\.json differs: {path[0]}.*{path[-1]}"):
        verify_bundle(copy)


def test_an_edited_estimate_is_named(bundle, copy, monkeypatch) -> None:
    certificate = read_certificate(copy)
    truth = {key: value for key, value in read_certificate(bundle).items() if key != "files"}
    certificate["estimates"][0]["ms_low"] /= 2
    (copy / "certificate.json").write_text(json.dumps(certificate))
    monkeypatch.setattr(verify, "make_certificate", lambda *arguments, **options: truth)
    with pytest.raises(ExportError, match=r"certificate\.json differs: estimates\[0\]\.ms_low"):
        verify_bundle(copy)


def test_a_certificate_without_estimates_passes(bundle, copy, monkeypatch) -> None:
    """An earlier edgefl wrote neither the entry nor the section of the report."""
    certificate = read_certificate(copy)
    truth = {key: value for key, value in read_certificate(bundle).items() if key != "files"}
    del certificate["estimates"]
    page = render_certificate_html(certificate).encode()
    assert b"<h2>Boards</h2>" not in page
    (copy / "report.html").write_bytes(page)
    certificate["files"]["report.html"] = sha256(page).hexdigest()
    (copy / "certificate.json").write_text(json.dumps(certificate))
    monkeypatch.setattr(verify, "make_certificate", lambda *arguments, **options: truth)
    assert not verify_bundle(copy).unchecked


def test_estimates_of_another_edgefl_are_not_compared(bundle) -> None:
    """Another version may know other boards."""
    truth = read_certificate(bundle)
    stated = {**truth, "edgefl": "0.0.1", "estimates": truth["estimates"][:1]}
    unchecked = list(verify._compare_certificates(stated, truth))
    assert len(unchecked) == 1 and unchecked[0].startswith("estimates: made by edgefl 0.0.1")


def test_a_damaged_certificate_is_an_error(copy) -> None:
    intact = read_certificate(copy)
    for text, message in (
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"certificate": 9}', "format 9"),
        ('{"certificate": 1, "files": 3}', "damaged"),
    ):
        (copy / "certificate.json").write_text(text)
        with pytest.raises(ExportError, match=message):
            verify_bundle(copy)
    (copy / "certificate.json").write_text(json.dumps({**intact, "golden": {"inputs": "elsewhere"}}))
    with pytest.raises(ExportError, match=r"damaged.*elsewhere"):
        verify_bundle(copy)
    certificate = {**intact, "files": {}}
    (copy / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(ExportError, match=r"does not list model\.tflite"):
        verify_bundle(copy)
    certificate["files"] = dict.fromkeys(
        ("model.tflite", "model_float.tflite", "golden.npz", "report.json", "../secret"), ""
    )
    (copy / "certificate.json").write_text(json.dumps(certificate))
    with pytest.raises(ExportError, match=r"not the exported file|inside its folder"):
        verify_bundle(copy)


def test_an_unavailable_target_is_listed(bundle, monkeypatch) -> None:
    monkeypatch.setattr(
        "firmware_export.certificate.parity.explain_not_runnable",
        lambda target: "" if target.is_host else "qemu-system-arm is not installed",
    )
    monkeypatch.setattr("firmware_export.certificate.certificate.read_tool_version", lambda tool: "")
    monkeypatch.setattr("firmware_export.certificate.certificate.explain_missing_tools", lambda *tools: "")
    result = verify_bundle(bundle)
    assert [
        line for line in result.unchecked if line.startswith("cortex-m4: qemu-system-arm is not installed")
    ]
    assert [line for line in result.unchecked if "sizes and instructions" in line]
