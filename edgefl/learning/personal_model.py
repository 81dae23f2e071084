"""The plan and the personal model in the state directory of a device, which an export reads."""

from edgefl.base.errors import EdgeflError, StateError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.files import FREE_SPACE_REMEDY, SECRET_MODE, write_errors, write_state
from edgefl.base.types import Mixture
from edgefl.learning.checkpoint import decode_stored_mixture, encode_mixture
from edgefl.program.plan.spec import Plan, load_plan, save_plan


def save_mixture(files: DeviceFiles, plan: Plan, mixture: Mixture, remedy: str = FREE_SPACE_REMEDY) -> None:
    """Write a mixture with the id of its plan.

    Args:
        files: directory of the device.
        remedy: last part of the error message.

    Raises:
        StateError: the file cannot be written.
    """
    write_state(files.mixture, encode_mixture(mixture, plan.id), SECRET_MODE, remedy)


def save_personal_model(files: DeviceFiles, plan: Plan, mixture: Mixture) -> None:
    """Write a plan and its mixture.

    Args:
        files: directory of the device.

    Raises:
        StateError: a file cannot be written.
    """
    with write_errors(files.plan):
        save_plan(plan, files.plan)
    save_mixture(files, plan, mixture)


def load_personal_model(files: DeviceFiles) -> tuple[Plan, Mixture]:
    """Read the plan and the mixture of `save_personal_model`.

    Raises:
        StateError: the mixture is missing or damaged, or plan and mixture do not belong together.
        PlanError: the plan is missing or cannot be read.
    """
    try:
        stored = decode_stored_mixture(files.mixture.read_bytes())
    except OSError as error:
        raise StateError(
            f"{files.root} contains no mixture yet: {error}; the device writes it when the federation ends"
        ) from error
    except EdgeflError as error:
        raise StateError(f"{files.mixture}: {error}") from error
    plan = load_plan(files.plan)
    if stored.plan_id and stored.plan_id != plan.id:
        raise StateError(
            f"{files.plan} is damaged, or belongs to another federation: its sha256 is {plan.id}, but "
            f"{files.mixture.name} expects {stored.plan_id}; copy the directory again, or let the device "
            "personalize again"
        )
    return plan, stored.mixture
