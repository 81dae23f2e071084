"""Tries a plan in a child process of `plan_check`: `python -m devices.plan_trial BLOB LIMIT_MB`.

The process runs each signature once on noise. It imports no algorithm and no TensorFlow, and has limits on
memory and processor time.
"""

import contextlib
import re
import resource
import sys
from pathlib import Path

import numpy as np

from edgefl.base.errors import EdgeflError
from edgefl.program.learner.augmentation import read_augmentation
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import Plan, SignatureSpec, decode_plan, read_samples_config

CPU_LIMIT_S = 240
KILL_AFTER_S = 10
"""Processor time between SIGXCPU at the soft limit and SIGKILL at the hard limit."""


def draw_noise_arguments(signature: SignatureSpec, num_classes: int) -> dict[str, np.ndarray]:
    """Return random arguments of a signature.

    Args:
        num_classes: number of classes. The labels are 0, 1 and so on, and start again after the last class.

    Returns:
        Arrays with the shapes and dtypes of the signature, by argument name. Data, weights and noise are
        uniform in [0, 1), and optimizer slots and sums of gradients are 0.
    """
    rng = np.random.default_rng(0)
    arguments = {f"d_{spec.name}": rng.random(spec.shape).astype(spec.dtype) for spec in signature.data}
    for letter, specs in (("t", signature.trained), ("f", signature.frozen), ("n", signature.noise)):
        arguments |= {
            f"{letter}_{i}": rng.random(spec.shape).astype(spec.dtype) for i, spec in enumerate(specs)
        }
    for letter, specs in (("s", signature.slots), ("g", signature.gradients)):
        arguments |= {f"{letter}_{i}": np.zeros(spec.shape, spec.dtype) for i, spec in enumerate(specs)}
    arguments |= {f"h_{name}": np.asarray(value, np.float32) for name, value in signature.hyper.items()}
    if signature.kind == "train":
        label = signature.label
        arguments["d_y"] = (
            (np.arange(signature.call_size) % num_classes).astype(np.int32)
            if label is None
            else rng.random(label.shape).astype(label.dtype)
        )
        arguments["d_sample_weight"] = np.ones(signature.call_size, np.float32)
    return arguments


def run_once(plan: Plan) -> None:
    """Run each signature of a plan once.

    Raises:
        PlanError: the plan cannot be run. The TFLite runtime may raise other errors.
    """
    read_augmentation(plan.spec)
    read_samples_config(plan.spec)
    learner = LiteRTLearner(plan)
    for signature in plan.spec.signatures:
        learner.step(signature.name, draw_noise_arguments(signature, plan.spec.num_classes))


def set_limits(limit_mb: int) -> None:
    """Limit the memory and processor time of this process, and forbid writing to files.

    Args:
        limit_mb: memory that the process may allocate from now on, in MB of 2^20 bytes.
    """
    [size] = re.findall(r"VmSize:\s*(\d+) kB", Path("/proc/self/status").read_text()) or ["0"]
    most = int(size) * 1024 + limit_mb * 2**20
    for kind, value in ((resource.RLIMIT_AS, most), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (value, value))
    # The soft limit is below the hard limit. Its signal SIGXCPU names the reason, and SIGKILL does not
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + KILL_AFTER_S))


def main(blob: str, limit_mb: str) -> int:
    """Try a plan. The last line of standard error names the problem.

    Args:
        blob: path of the plan.
        limit_mb: memory limit in MB of 2^20 bytes.

    Returns:
        The exit code: 0 if the plan runs, otherwise 1.
    """
    content = Path(blob).read_bytes()
    with contextlib.suppress(EdgeflError):
        # The runtime refuses this model, but loads its libraries before the memory limit applies
        load_interpreter(b"\0\0\0\0TFL3")
    set_limits(int(limit_mb))
    try:
        run_once(decode_plan(content))
    except MemoryError:
        print(f"its program needs more than {limit_mb} MB", file=sys.stderr)
    except EdgeflError as error:
        print(str(error), file=sys.stderr)
    except Exception as error:  # A program that does not fit its spec can raise any error
        print(f"its program does not run: {error!r}".replace("\n", " "), file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
