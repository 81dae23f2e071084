"""The client machine with hand-worked sequences of events."""

from dataclasses import replace

import pytest

from edgefl.base.errors import LinkError
from edgefl.protocol.device.duplicate_id import DuplicateIdError
from edgefl.protocol.device.events import (
    AvailabilityChanged,
    CacheRead,
    ClaimReceived,
    EndParticipation,
    ForgetPendingTask,
    PlanRefused,
    PublishMetrics,
    ReceiptReceived,
    SameIdStatusReceived,
    SavedClient,
    SaveOrder,
    SavePendingTask,
    SaveRound,
    StateReceived,
    StopClient,
    Subscribe,
    TaskReceived,
    Train,
    TrainingFailed,
    Unsubscribe,
)
from edgefl.protocol.device.machine import (
    DRAIN_PERIOD_S,
    STATUS_TIMEOUT_S,
    UNCHECKED_REASON,
    ClientMachine,
    ClientSettings,
)
from edgefl.protocol.device.refusals import FIRST_RETRY_S
from edgefl.protocol.wire.divergence_message import Divergence, FederationDivergedError, encode_divergence
from edgefl.protocol.wire.machine_events import LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.messages import Begin, Claim, Status
from tests.edgefl.protocol.device.machines import (
    PLAN,
    STATUS,
    TOPICS,
    MachineHarness,
    list_lines,
    make_answered,
    make_state,
    make_task,
)


def test_client_subscribes_to_its_tasks_before_it_publishes_its_status():
    first, status, last, line = MachineHarness().actions
    assert isinstance(first, Subscribe) and isinstance(last, Subscribe)
    assert [name.rpartition("/")[2] for name in first.filters] == ["claim", "task", "receipt", "state"]
    assert status.is_retained and status.message == STATUS
    assert [name.rpartition("/")[2] for name in last.filters] == ["status"]
    assert "pi-1 joined 'f' at the broker with 10 samples" in line.line


def test_answer_is_stored_before_it_is_announced_and_forgotten_after_its_receipt():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    [train] = driver.list(Train)
    assert (train.task, train.models) == (make_task(1), {"global": b"b"})
    stored, announced = driver.train("1")
    assert stored == SaveRound(make_answered())
    assert (announced.message.sha256, announced.message.nonce) == ("1" * 64, "nonce1federate")
    assert announced.receiver == "pi-1", "an announcement is signed"
    forgotten, line, metrics = driver.handle(ReceiptReceived(driver.make_receipt()))
    assert (forgotten, metrics) == (ForgetPendingTask(), PublishMetrics(1, {"loss": 0.5}))
    assert line.line == "round 1 federate: loss 0.5"
    assert driver.machine.uploading_sha256 == ""


def test_client_in_training_answers_claims_pauses_and_newer_tasks():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    [answer] = driver.handle(ClaimReceived(Claim("another boot", 0.0)))
    assert answer.message == STATUS
    assert not driver.handle(ClaimReceived(Claim("boot", 0.0))), "its own claim"
    driver.handle(AvailabilityChanged("busy"))
    assert (driver.status.paused, driver.status.draining) == ("busy", True)
    driver.handle(AvailabilityChanged(""))
    assert (driver.status.paused, driver.status.draining) == ("", False)
    order, *rest = driver.handle(TaskReceived(make_task(2)))
    assert isinstance(order, SaveOrder) and not rest
    stored, line, train = driver.train("1")
    assert isinstance(stored, SaveRound), "a result is stored even if its round is over"
    assert line.line == "round 1: stopped, because the round is over"
    assert isinstance(train, Train) and train.task.round == 2
    assert not driver.list_messages(Begin)


def test_late_answer_is_announced_before_the_newer_task_is_trained():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1, max_staleness=1)))
    assert driver.list(SavePendingTask)[-1].task.round == 1
    driver.handle(TaskReceived(make_task(2, max_staleness=1)))
    driver.train("1")
    assert driver.list_messages(Begin)[-1].round == 1
    driver.handle(ReceiptReceived(driver.make_receipt()))
    assert driver.list(Train)[-1].task.round == 2
    driver.train("2")
    assert driver.list_messages(Begin)[-1].round == 2


def test_restarted_client_sends_a_late_answer_and_does_not_train_again():
    task = make_task(1, max_staleness=1)
    saved = SavedClient(answered=make_answered(), pending=task)
    driver = MachineHarness(saved)
    driver.handle(TaskReceived(make_task(2, max_staleness=1)))
    assert driver.list_messages(Begin)[-1].round == 1
    assert not driver.list(Train)
    driver.handle(ReceiptReceived(driver.make_receipt()))
    assert driver.list(Train)[-1].task.round == 2


@pytest.mark.parametrize("newer", [make_task(3, max_staleness=1), make_task(2, "personalize")])
def test_answer_that_is_too_late_is_not_sent(newer):
    saved = SavedClient(answered=make_answered(), pending=make_task(1, max_staleness=1))
    driver = MachineHarness(saved)
    driver.handle(TaskReceived(newer))
    assert not driver.list_messages(Begin)
    assert driver.list(Train)[-1].task == newer


def test_repeated_task_gets_the_stored_answer():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    driver.train("1")
    driver.handle(ReceiptReceived(driver.make_receipt()))
    before = len(driver.list_messages(Begin))
    driver.handle(TaskReceived(make_task(1)))
    assert len(driver.list_messages(Begin)) == before + 1
    assert len(driver.list(Train)) == 1
    restarted = MachineHarness(SavedClient(answered=make_answered()))
    restarted.handle(TaskReceived(make_task(1)))
    assert restarted.list_messages(Begin)[-1].sha256 == "1" * 64


def test_paused_client_takes_up_a_task_only_in_the_drain_period():
    driver = MachineHarness()
    driver.handle(AvailabilityChanged("operator"))
    driver.now = DRAIN_PERIOD_S - 0.1
    driver.handle(TaskReceived(make_task(1)))
    assert driver.list(Train)
    driver = MachineHarness()
    driver.handle(AvailabilityChanged("operator"))
    driver.now = DRAIN_PERIOD_S
    driver.handle(TaskReceived(make_task(1)))
    assert not driver.list(Train)
    driver.handle(AvailabilityChanged(""))
    assert driver.list(Train), "the task still waits when the pause ends"
    paused = MachineHarness(status=replace(STATUS, paused="operator"))
    paused.handle(TaskReceived(make_task(1)))
    assert not paused.list(Train), "no task was sent before a pause that began before the start"


def test_task_that_waited_for_a_training_survives_a_pause():
    """The aggregator sent it before it received the pause, and waits for its answer."""
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    driver.now = 180.0
    driver.handle(TaskReceived(make_task(2)))
    driver.now = 300.0
    driver.handle(AvailabilityChanged("operator"))
    driver.now = 600.0
    driver.train("1")
    assert driver.list(Train)[-1].task.round == 2


def test_check_of_a_plan_ends_with_the_federation():
    """The aggregator withdraws the plan, so a client that waits for it would wait for ever."""
    machine = ClientMachine(
        topics=TOPICS, status=STATUS, settings=ClientSettings(is_checked=False), saved=SavedClient()
    )
    machine.handle(StateReceived(make_state("personalize")), 0.0)
    machine.handle(CacheRead((PLAN,), {}), 0.0)
    actions = machine.handle(StateReceived(make_state("done")), 1.0)
    assert [type(action) for action in actions[:2]] == [Unsubscribe, EndParticipation]


def test_check_of_a_later_plan_does_not_end_because_of_an_earlier_task():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    driver.handle(PlanRefused(PLAN, "it names code"))
    driver.machine.handle(StateReceived(make_state(plan="c" * 64, session="s2", started=2)), 1.0)
    assert driver.machine.get_timer() < float("inf")
    driver.execute(driver.machine.handle(CacheRead(("c" * 64,), {"c" * 64: b"plan"}), 1.0))
    assert driver.status.paused == ""


def test_unchecked_client_is_paused_until_a_plan_fits_its_data():
    driver = MachineHarness(is_checked=False)
    assert driver.status.paused == UNCHECKED_REASON
    driver.handle(StateReceived(make_state("joining", round=0)))
    assert driver.status.paused == ""


def test_refused_plan_pauses_until_another_plan():
    driver = MachineHarness()
    driver.handle(PlanRefused(PLAN, "it names code"))
    assert driver.status.paused == "refuses the plan: it names code"
    driver.handle(TaskReceived(make_task(1)))
    assert not driver.list(Train)
    driver.handle(StateReceived(make_state(plan="c" * 64, session="s2", started=2)))
    assert driver.status.paused == ""
    driver.handle(TaskReceived(make_task(1, plan="c" * 64, session="s2", started=2)))
    assert driver.list(Train)


def test_refused_task_pauses_twice_as_long_each_time_until_a_task_succeeds():
    driver = MachineHarness()
    for number, pause in enumerate((FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S), 1):
        driver.handle(TaskReceived(make_task(number)))
        lines = list_lines(driver.handle(TrainingFailed(make_task(number), "its loss is nan", True)))
        assert f"tries another task in {pause:g} s" in lines[0]
        assert driver.status.paused == f"refuses round {number}: diverged: its loss is nan"
        driver.now += pause - 0.1
        driver.handle(TimePassed())
        assert driver.status.paused
        assert driver.machine.get_timer() == pytest.approx(driver.now + 0.1)
        driver.now += 0.2
        driver.handle(TimePassed())
        assert driver.status.paused == ""
    driver.handle(TaskReceived(make_task(4)))
    driver.train("1")
    driver.handle(ReceiptReceived(driver.make_receipt()))
    driver.handle(TaskReceived(make_task(5)))
    assert f"in {FIRST_RETRY_S:g} s" in list_lines(driver.handle(TrainingFailed(make_task(5), "x")))[0]


def test_last_failure_is_known_at_the_end():
    driver = MachineHarness()
    driver.handle(StateReceived(make_state()), TaskReceived(make_task(1, "personalize")))
    driver.handle(TrainingFailed(make_task(1, "personalize"), "its models do not fit"))
    driver.handle(StateReceived(make_state("done")))
    assert driver.list(EndParticipation) == [EndParticipation("s1", "its models do not fit")]


def test_end_of_a_session_that_the_client_never_saw_is_not_its_end():
    driver = MachineHarness()
    driver.handle(StateReceived(make_state("done")))
    assert not driver.list(EndParticipation)
    answered = make_answered(3, "personalize")
    driver = MachineHarness(SavedClient(answered=answered))
    driver.handle(StateReceived(make_state("done")))
    assert driver.list(EndParticipation) == [EndParticipation("s1", "")]


def test_end_while_the_client_trains_is_handled_after_the_training():
    driver = MachineHarness()
    driver.handle(StateReceived(make_state()), TaskReceived(make_task(1)))
    assert not driver.handle(StateReceived(make_state("done")))
    *_, end = driver.train("1")
    assert end == EndParticipation("s1", "")
    assert not driver.list_messages(Begin)


def test_stopped_and_diverged_aggregators():
    driver = MachineHarness()
    driver.handle(StateReceived(make_state()))
    gone = driver.handle(StateReceived(make_state("stopped")))
    assert "the aggregator has stopped" in list_lines(gone)[0]
    back = driver.handle(StateReceived(make_state("federate", started=2)))
    assert list_lines(back) == ["the aggregator is back, in phase federate"]
    settings = encode_divergence(Divergence(round=2, clients=2, cohort=3))
    driver.handle(StateReceived(make_state("stopped", started=2, settings=settings)))
    [stop] = driver.list(StopClient)
    assert isinstance(stop.error, FederationDivergedError) and stop.error.divergence.cohort == 3


def test_client_waits_for_a_federation_for_a_limited_time():
    driver = MachineHarness(wait_s=10.0)
    assert driver.machine.get_timer() == 10.0
    driver.now = 10.0
    driver.handle(TimePassed())
    [stop] = driver.list(StopClient)
    assert isinstance(stop.error, LinkError) and "did not run within 10 s" in str(stop.error)
    driver = MachineHarness(wait_s=10.0)
    driver.handle(StateReceived(make_state()))
    driver.now = 10.0
    driver.handle(TimePassed())
    assert not driver.list(StopClient)


def test_status_that_the_broker_does_not_deliver_is_logged_once():
    driver = MachineHarness(broker="mqtt://lab")
    driver.now = STATUS_TIMEOUT_S
    lines = list_lines(driver.handle(TimePassed(), TimePassed()))
    assert len(lines) == 1 and "edgefl doctor --broker mqtt://lab" in lines[0] and "access list" in lines[0]
    driver = MachineHarness()
    driver.handle(SameIdStatusReceived(STATUS))
    driver.now = STATUS_TIMEOUT_S
    assert not driver.handle(TimePassed())


def test_status_is_published_again_after_a_reconnect_and_after_a_will():
    driver = MachineHarness()
    will = replace(STATUS, online=False)
    for event in (
        LinkRestored(),
        SameIdStatusReceived(will),
        SameIdStatusReceived(replace(will, boot_id="old")),
    ):
        [again] = driver.handle(event)
        assert again.message == STATUS and again.is_retained
    assert driver.machine.stop()[0].message == will


def test_client_that_started_later_yields_its_id():
    driver = MachineHarness()
    [answer] = driver.handle(SameIdStatusReceived(replace(STATUS, boot_id="later", born=6.0)))
    assert isinstance(answer, Publish)
    [stop] = driver.handle(SameIdStatusReceived(replace(STATUS, boot_id="earlier", born=4.0)))
    assert isinstance(stop.error, DuplicateIdError) and "'pi-1'" in str(stop.error)


def test_rejected_answer_is_logged_and_its_task_is_closed():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    driver.train("1")
    actions = driver.handle(ReceiptReceived(driver.make_receipt("rejected", reason="too large")))
    assert list_lines(actions) == ["round 1: the aggregator rejected the update: too large"]
    assert not driver.list(PublishMetrics)
    assert driver.handle(TimePassed()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan": "../../etc"}, "refuses the plan: the plan cannot be fetched: a blob is named '../../etc'"),
        ({"models": {"global": "x"}}, "refuses round 1: a blob is named 'x', expected its sha256"),
    ],
)
def test_malformed_digest_is_refused_and_the_next_task_is_taken_up(changes, reason):
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1, **changes)))
    assert reason in driver.status.paused
    driver.handle(TaskReceived(make_task(2)))
    assert driver.list(Train)[-1].task.round == 2


def test_only_statuses_announcements_requests_and_metrics_leave_the_client():
    """An update leaves the client only in chunks, which `PublishChunk` names."""
    driver = MachineHarness()
    driver.handle(TaskReceived(make_task(1)))
    driver.train("1")
    published = {type(action.message) for action in driver.list(Publish)}
    assert published == {Status, Begin}
