"""Plans of a network and objectives that a test chooses, without an algorithm."""

from collections.abc import Sequence

from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.objective import Objective
from edgefl.program.plan.spec import Plan, PlanSpec


def compile_network_plan(network: Network, objectives: Sequence[Objective]) -> Plan:
    """Return a plan with these objectives and the weights of the network, without a template."""
    program, signatures = compile_program(objectives)
    spec = PlanSpec(
        model="m",
        algorithm="a",
        options={},
        input_shape=network.input_shape,
        num_classes=network.num_classes,
        weights=network.specs,
        signatures=signatures,
    )
    return Plan(spec=spec, program=program, template=b"")
