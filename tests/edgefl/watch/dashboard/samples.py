"""Snapshots of invented federations, in the form of `edgefl.watch.monitor.view`."""

import numpy as np

from edgefl.learning.algorithms.clustering.hierarchical import (
    build_linkage,
    cosine_distance,
    cosine_similarity,
)

STATES = ("training", "sent", "sent", "idle", "paused", "silent", "offline", "rejected")
REASONS = {
    "idle": "not drawn for this round",
    "paused": "paused: on battery",
    "silent": "silent: no answer to round 12 for 71 s",
    "offline": "offline",
    "rejected": "rejected: delta of expert1/kernel is not finite",
}
NOW = 1_790_000_000.0


def make_device(i, rounds, rng):
    state = STATES[i % len(STATES)]
    accuracy = np.clip(
        0.5
        + 0.4 * (1 - np.exp(-np.arange(1, rounds + 1) / 5))
        + rng.normal(0, 0.02, rounds)
        - 0.01 * (i % 7),
        0,
        1,
    )
    gate = rng.dirichlet([0.6] * 3).tolist()
    final_accuracy = float(accuracy[-1])
    return {
        "id": f"pi-{i + 1}",
        "state": state,
        "why": REASONS.get(state, ""),
        "slow": False,
        "samples": 200 + 13 * i,
        "version": "0.1.0",
        "last_seen_ts": NOW - 3 * (i % 40),
        "round": rounds,
        "accuracy": final_accuracy,
        "loss": 1 - final_accuracy,
        "accuracy_federated": final_accuracy,
        "accuracy_mixture": min(1.0, final_accuracy + 0.05),
        "accuracy_int8": min(1.0, final_accuracy + 0.045),
        "rss_mb": 45.0 + i % 20,
        "peak_rss_mb": 60.0 + i % 20,
        "temperature_c": None if i % 3 else 48.5,
        "seconds": 4.2 + i % 9,
        "expert": int(np.argmax(gate)),
        "gate": gate,
        "bytes_up": 248_000 * rounds,
        "rejected": int(state == "rejected"),
        "last_error": f"round {rounds}: delta of expert1/kernel is not finite" if state == "rejected" else "",
        "trace": [[r + 1, float(value)] for r, value in enumerate(accuracy)],
        "trace_of": "accuracy",
    }


def make_similarity(ids, groups, round, rng):
    centers = rng.normal(size=(groups, 12))
    vectors = [centers[i % groups] + rng.normal(0, 0.35, 12) for i in range(len(ids))]
    return {
        "round": round,
        "layer": "dense/kernel",
        "clients": list(ids),
        "matrix": np.round(cosine_similarity(vectors), 3).tolist(),
        "linkage": build_linkage(cosine_distance(vectors), "average").tolist(),
        "cut": 0.45,
    }


def make_snapshot(devices=8, rounds=12, groups=3, seed=1):
    """Return the snapshot of a federation eight rounds before its end."""
    rng = np.random.default_rng(seed)
    device_records = [make_device(i, rounds, rng) for i in range(devices)]
    mean = [0.5 + 0.4 * (1 - np.exp(-r / 5)) for r in range(1, rounds + 1)]
    history = [
        {
            "round": r,
            "phase": "federate",
            "updates": min(devices, 10),
            "loss": 1.2 - a,
            "accuracy_mean": a,
            "accuracy_p10": a - 0.08,
            "accuracy_p90": a + 0.05,
            "bytes_up": 248_000 * devices,
            "bytes_down": 250_000 * devices + 9_000 * r,
            "seconds": 14.5,
            "dropped": ["pi-7"] if r % 5 == 0 else [],
        }
        for r, a in enumerate(map(float, mean), 1)
    ]
    ids = [record["id"] for record in device_records]
    assignment = {client_id: i % groups for i, client_id in enumerate(ids)}
    one_cluster = dict.fromkeys(ids, 0)
    return {
        "federation": "kitchen",
        "session": "5f0c",
        "phase": "federate",
        "round": rounds + 1,
        "rounds": rounds + 8,
        "experts": ["expert 0", "expert 1", "local"],
        "cohort_size": min(devices, 10),
        "deadline_s": 60.0,
        "round_started_ts": NOW - 21.0,
        "ts": NOW,
        "broken": 0,
        "recipe": "learning_rate 0.03, mean 0.286, std 0.353",
        "history": history,
        "devices": device_records,
        "clusters": {
            "rounds": [
                {"round": r, "assignment": one_cluster if r < 4 else assignment} for r in range(2, rounds + 1)
            ],
            "similarity": make_similarity(ids[:100], groups, 4, rng),
        },
        "broker": {"url": "mqtt://192.168.1.10:1883", "connected": True, "since_ts": NOW - 900},
    }
