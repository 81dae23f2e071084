"""A signature gives the same results with the runtime's private names and with its public names."""

import numpy as np
import pytest

from edgefl.base.errors import PlanError
from edgefl.base.rng import derive_rng
from edgefl.program.learner.signature import PreparedSignature, PublicSignature, open_signature
from edgefl.program.plan.runtime import load_interpreter


class WithoutPrivateNames:
    """An interpreter whose runners have only public names."""

    def __init__(self, interpreter):
        self._interpreter = interpreter

    def get_signature_runner(self, name):
        runner = self._interpreter.get_signature_runner(name)

        class Runner:
            def __call__(self, **arguments):
                return runner(**arguments)

            def get_input_details(self):
                return runner.get_input_details()

        return Runner()


@pytest.fixture
def open_wrapped(tiny):
    plan = tiny[0]

    def open_one(wrap, name):
        return open_signature(wrap(load_interpreter(plan.program)), name)

    return open_one


def draw_arguments(plan, name):
    rng = derive_rng(1, 1)
    details = load_interpreter(plan.program).get_signature_runner(name).get_input_details()
    return {
        input_name: rng.uniform(0, 0.1, detail["shape"]).astype(detail["dtype"])
        for input_name, detail in details.items()
    }


def test_private_and_public_names_give_the_same_bits(open_wrapped, tiny):
    for signature in tiny[0].spec.signatures:
        name = signature.name
        prepared = open_wrapped(lambda interpreter: interpreter, name)
        public = open_wrapped(WithoutPrivateNames, name)
        assert isinstance(prepared, PreparedSignature) and isinstance(public, PublicSignature)
        arguments = draw_arguments(tiny[0], name)
        expected = {key: value.copy() for key, value in prepared(arguments).items()}
        result = public(arguments)
        assert result.keys() == expected.keys() and expected
        for key, value in expected.items():
            np.testing.assert_array_equal(result[key], value)


@pytest.mark.parametrize("wrap", [lambda interpreter: interpreter, WithoutPrivateNames])
def test_missing_inputs_are_refused(wrap, open_wrapped, tiny):
    name = tiny[0].spec.signatures[0].name
    arguments = draw_arguments(tiny[0], name)
    incomplete = dict(list(arguments.items())[1:])
    with pytest.raises(PlanError, match=f"takes {next(iter(arguments))}.*build the plan again"):
        open_wrapped(wrap, name)(incomplete)
