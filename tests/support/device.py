"""Run `edgefl ...` with one more choice of `--learner`: numpy, which runs the plans of `softmax_spec`."""

from devices.learners import LEARNERS
from edgefl.__main__ import main
from tests.support.numpy_learner.softmax import SoftmaxLearner

LEARNERS["numpy"] = lambda plan, threads: SoftmaxLearner(plan.spec)

if __name__ == "__main__":
    main()
