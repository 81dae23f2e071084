"""How many members of a blend an export for a microcontroller takes, and the table of their costs."""

import pytest

from firmware_export.certificate.budget import Budget
from firmware_export.certificate.certificate import ExportRequest
from firmware_export.certificate.member_exports import (
    MemberExport,
    choose_member_count,
    describe_member_exports,
    measure_member_exports,
)
from firmware_export.certificate.resource_usage import TargetCost
from firmware_export.firmware.firmware import explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.quantize import export_mixture


def make_export(names, accuracy, flash, ram, instructions):
    """Return an export whose stack has 200 bytes."""
    return MemberExport(
        names,
        accuracy,
        TargetCost(
            target="cortex-m4",
            flash_bytes=flash,
            ram_bytes=ram - 200,
            stack_bytes=200,
            instructions_mean=instructions,
            instructions_worst=instructions,
            program_flash_bytes=flash,
            program_ram_bytes=ram,
        ),
    )


EXPORTS = [
    make_export(("local",), 0.8, 70_000, 3000, 900_000),
    make_export(("federated", "local"), 0.85, 140_000, 4000, 1_800_000),
    make_export(("federated", "local", "fine_tuned"), 0.86, 210_000, 4000, 2_700_000),
]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(), 1),
        (Budget(ram_bytes=8192, flash_bytes=1 << 20), 1),
        (Budget(ram_bytes=8192, flash_bytes=1 << 20, instructions=10**7), 3),
        (Budget(ram_bytes=4000, flash_bytes=210_000, instructions=2_700_000), 3),
        (Budget(ram_bytes=8192, flash_bytes=209_999, instructions=10**7), 2),
        (Budget(ram_bytes=8192, flash_bytes=1 << 20, instructions=2_699_999), 2),
        (Budget(ram_bytes=3999, flash_bytes=1 << 20, instructions=10**7), 1),
        (Budget(ram_bytes=100, flash_bytes=1 << 20, instructions=10**7), 1),
    ],
)
def test_an_export_takes_all_that_fit_a_whole_budget(budget, expected):
    assert choose_member_count(EXPORTS, budget) == expected


def test_unmeasured_costs_fit_no_budget():
    unmeasured = [MemberExport(("local",), 0.8, None), MemberExport(("local", "federated"), 0.9, None)]
    budget = Budget(ram_bytes=8192, flash_bytes=1 << 20, instructions=10**7)
    assert choose_member_count(unmeasured, budget) == 1
    assert describe_member_exports(unmeasured, 1).splitlines()[2].split()[-3:] == ["-", "-", "-"]


def test_table_shows_the_chosen_export_and_how_to_take_another_one():
    lines = describe_member_exports(EXPORTS, 2).splitlines()
    assert [line.endswith("*") for line in lines[:4]] == [False, False, True, False]
    assert lines[3].split() == [
        "federated,",
        "local,",
        "fine_tuned",
        "86.0%",
        "210,000",
        "4,000",
        "2,700,000",
    ]
    assert "exported: 2 of 3 members. --members takes another number" in lines[4]


@pytest.mark.slow
def test_costs_grow_with_the_members(mixture_of):
    pytest.importorskip("tflite_micro")
    if reason := explain_not_runnable(TARGETS["cortex-m4"]):
        pytest.skip(reason)
    made = mixture_of("blend", "uci-har")

    def write_models(folder, members):
        return export_mixture(made.plan, made.mixture, made.shard, folder, max_members=members)

    names = (("local",), ("federated", "local"))
    request = ExportRequest(target="cortex-m4", budget=Budget())
    one, two = measure_member_exports(write_models, names, made.shard.x_test, made.shard.y_test, request)
    assert one.names == ("local",) and 0 < one.score_int8 <= 1
    assert 1.8 < two.cost.flash_bytes / one.cost.flash_bytes < 2.2
    assert 1.8 < two.cost.instructions_mean / one.cost.instructions_mean < 2.2
    assert two.cost.ram_bytes < 2 * one.cost.ram_bytes
