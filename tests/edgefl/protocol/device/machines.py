"""A client machine whose driver is the test."""

from collections import deque

from edgefl.protocol.device.events import (
    Answer,
    AnsweredRound,
    CacheRead,
    OpenPlan,
    PlanOpened,
    ReadCache,
    SavedClient,
    Train,
    Trained,
    WriteClientLog,
)
from edgefl.protocol.device.machine import ClientMachine, ClientSettings
from edgefl.protocol.wire.machine_events import Publish
from edgefl.protocol.wire.messages import Begin, Receipt, State, Status, Task
from edgefl.protocol.wire.topics import FederationTopics

TOPICS = FederationTopics("f")
PLAN = "a" * 64
MODEL = "b" * 64
STATUS = Status(client_id="pi-1", boot_id="boot", online=True, born=5.0, num_samples=10, version="0", ts=0.0)


def make_task(number, phase="federate", **changes):
    values = {
        "session": "s1",
        "round": number,
        "phase": phase,
        "plan": PLAN,
        "models": {"global": MODEL},
        "scalars": {},
        "seed": 0,
        "deadline_s": 60.0,
        "codec": "fp32",
        "max_staleness": 0,
        "budget_s": 0.0,
        "nonce": f"nonce{number}{phase}",
        "ts": 0.0,
        "started": 1,
    }
    return Task(**values | changes)


def make_state(phase="federate", **changes):
    values = {
        "federation": "f",
        "session": "s1",
        "phase": phase,
        "round": 1,
        "rounds": 3,
        "cohort_size": 1,
        "deadline_s": 60.0,
        "plan": PLAN,
        "ts": 0.0,
        "started": 1,
    }
    return State(**values | changes)


def make_answer(digit, num_samples=10, metrics=None):
    return Answer(sha256=digit * 64, size=5, num_samples=num_samples, metrics=metrics or {"loss": 0.5})


def make_answered(number=1, phase="federate", digit="1"):
    return AnsweredRound(session="s1", round=number, phase=phase, answer=make_answer(digit))


def list_lines(actions):
    return [action.line for action in actions if isinstance(action, WriteClientLog)]


class MachineHarness:
    """Carries out what needs no decision: finds all blobs and opens all plans.

    Attributes:
        machine: the client machine.
        actions: all actions so far, except `ReadCache` and `OpenPlan`.
    """

    def __init__(self, saved=None, status=STATUS, **settings):
        self.machine = ClientMachine(
            topics=TOPICS, status=status, settings=ClientSettings(**settings), saved=saved or SavedClient()
        )
        self.actions = []
        self.now = 0.0
        self.execute(self.machine.start(self.now))

    def execute(self, actions):
        waiting = deque(actions)
        while waiting:
            match waiting.popleft():
                case ReadCache(digests):
                    blobs = CacheRead(digests, {sha256: sha256[:1].encode() for sha256 in digests})
                    waiting.extend(self.machine.handle(blobs, self.now))
                case OpenPlan(sha256):
                    waiting.extend(self.machine.handle(PlanOpened(sha256, 1000), self.now))
                case action:
                    self.actions.append(action)

    def handle(self, *events):
        """Let the machine handle events, and return the actions that followed, except those above."""
        before = len(self.actions)
        for event in events:
            self.execute(self.machine.handle(event, self.now))
        return self.actions[before:]

    def train(self, digit="1", **answer):
        """Answer the last `Train`."""
        task = self.list(Train)[-1].task
        return self.handle(Trained(task, make_answer(digit, **answer)))

    def list(self, kind):
        return [action for action in self.actions if isinstance(action, kind)]

    def list_messages(self, kind):
        return [action.message for action in self.list(Publish) if isinstance(action.message, kind)]

    @property
    def status(self):
        return self.list_messages(Status)[-1]

    def make_receipt(self, outcome="ok", missing=(), reason=""):
        """Return a receipt for the last announcement."""
        begin = self.list_messages(Begin)[-1]
        return Receipt(
            round=begin.round,
            sha256=begin.sha256,
            outcome=outcome,
            missing=missing,
            reason=reason,
            nonce=begin.nonce,
            ts=0.0,
        )
