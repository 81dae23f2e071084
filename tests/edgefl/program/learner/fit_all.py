"""Runs every signature of a plan on random samples, in another environment: `fit_all.py PLAN WEIGHTS OUT`."""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.spec import load_plan

plan = load_plan(Path(sys.argv[1]))
weights = load_file(sys.argv[2])
learner = LiteRTLearner(plan)
results = {}
for signature in plan.spec.signatures:
    rng = np.random.default_rng(5)
    count = 3 * signature.batch_size - 1
    data = {spec.name: rng.random((count, *spec.shape[1:]), dtype=np.float32) for spec in signature.data}
    for spec in (*signature.trained, *signature.frozen):
        if spec.name not in weights:
            weights[spec.name] = rng.normal(0, 0.1, spec.shape).astype(np.float32)
    if signature.kind == "predict":
        results[f"{signature.name}:out"] = learner.predict(signature.name, weights, data)
        continue
    labels = rng.integers(0, plan.spec.num_classes, count)
    trained, loss = learner.fit(
        signature.name, weights, data, labels, epochs=2, rng=rng, hyper={"learning_rate": 0.01}
    )
    results[f"{signature.name}:loss"] = np.array([loss], np.float32)
    results |= {f"{signature.name}:{name}": array for name, array in trained.items()}
save_file(results, sys.argv[3])
