"""The client machine in masked rounds: hand-worked steps, and no update leaves the client without masks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.device.events import (
    AnswerStep,
    BeginAttempt,
    ForgetPendingTask,
    MaskedAnswerReady,
    PackageMissing,
    PublishChunk,
    PublishMetrics,
    ReceiptReceived,
    SavedClient,
    SaveMaskedSession,
    SavePendingTask,
    SaveRound,
    TaskReceived,
    Train,
    Trained,
    TrainingFailed,
)
from edgefl.protocol.device.masked_rounds import EMPTY_ANSWER
from edgefl.protocol.device.order import MASKED_ONLY_REASON, SharingRules
from edgefl.protocol.wire.machine_events import LinkLoad
from edgefl.protocol.wire.masked import MASKED_CODEC, MAX_ATTEMPTS, make_step_nonce
from edgefl.protocol.wire.messages import Begin
from tests.edgefl.protocol.device.machines import (
    MachineHarness,
    list_lines,
    make_answer,
    make_answered,
    make_task,
)

METRICS = {"loss": 0.5, "accuracy": 0.9, "seconds": 3.0}


def make_masked_task(step="federate", number=1, attempt="e"):
    models = {"global": "b" * 64} if step == "federate" else {"request": "c" * 64}
    nonce = make_step_nonce(attempt, step)
    return make_task(number, step, codec=MASKED_CODEC, models=models, nonce=nonce)


def test_plain_task_is_refused_in_a_session_that_was_masked():
    driver = MachineHarness(SavedClient(masked_sessions=("s1",)))
    driver.handle(TaskReceived(make_task(1)))
    assert not driver.list(Train)
    assert "asks for an update that is not masked" in driver.status.paused
    driver.handle(TaskReceived(make_task(1, session="s2", started=2)))
    assert driver.list(Train), "another session may be unmasked"


def test_masked_only_client_pauses_in_an_unmasked_federation():
    driver = MachineHarness(sharing=SharingRules(masked_only=True))
    driver.handle(TaskReceived(make_task(1)))
    assert not driver.list(Train)
    assert driver.status.paused == MASKED_ONLY_REASON


def test_session_is_stored_as_masked_before_an_attempt_begins():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_masked_task()))
    stored, masked, begun = driver.train("1")
    assert isinstance(stored, SaveRound)
    assert masked == SaveMaskedSession("s1")
    assert isinstance(begun, BeginAttempt) and not driver.list_messages(Begin)
    driver.handle(MaskedAnswerReady(make_masked_task(), "d" * 64, 7))
    begin = driver.list_messages(Begin)[-1]
    assert (begin.sha256, begin.size, begin.metrics, begin.num_samples) == ("d" * 64, 7, {}, 10)


def test_missing_package_pauses_the_client():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_masked_task()))
    driver.train("1")
    lines = list_lines(driver.handle(PackageMissing(make_masked_task(), "pip install cryptography")))
    assert "pip install cryptography. This device tries another task in 5 s" in lines[0]
    assert driver.status.paused == "refuses masked rounds: pip install cryptography"


def test_step_of_a_lost_attempt_gets_an_empty_answer():
    driver = MachineHarness(SavedClient(answered=make_answered()))
    actions = driver.handle(TaskReceived(make_masked_task("share")))
    assert "no keys of the attempt" in list_lines(actions)[0]
    begin = driver.list_messages(Begin)[-1]
    assert (begin.sha256, begin.size, begin.num_samples) == (EMPTY_ANSWER.sha256, 0, 1)


def begin_attempt(driver, number=1, attempt="e"):
    """Play until the keys of an attempt are announced and accepted."""
    task = make_masked_task(number=number, attempt=attempt)
    driver.handle(TaskReceived(task))
    if driver.list(Train) and not driver.list(SaveRound):
        driver.train("1", metrics=METRICS)
    driver.handle(MaskedAnswerReady(task, "d" * 64, 7))
    driver.handle(ReceiptReceived(driver.make_receipt()))


def answer_step(driver, step, attempt="e", size=16):
    """Let the client answer a step, and return its announcement."""
    task = make_masked_task(step, attempt=attempt)
    driver.handle(TaskReceived(task))
    assert driver.list(AnswerStep)[-1] == AnswerStep(task, b"c")
    driver.handle(MaskedAnswerReady(task, "e" * 64, size))
    return driver.list_messages(Begin)[-1]


@pytest.mark.parametrize("requires_masks", [False, True])
def test_client_answers_all_steps_of_an_attempt(requires_masks):
    driver = MachineHarness(sharing=SharingRules(masked_only=requires_masks))
    begin_attempt(driver)
    for step in ("share", "mask", "agree", "unmask"):
        begin = answer_step(driver, step)
        assert (begin.sha256, begin.size, begin.num_samples) == ("e" * 64, 16, 10)
        shared = {"seconds": 3.0} if requires_masks else {"loss": 0.5, "seconds": 3.0}
        assert begin.metrics == (shared if step == "mask" else {})
        assert not driver.list(PublishMetrics), "the part of the client is not over"
        driver.handle(ReceiptReceived(driver.make_receipt()))
    assert driver.list(ForgetPendingTask)
    assert driver.list(PublishMetrics) == [PublishMetrics(1, shared)]


@pytest.mark.parametrize(
    ("step", "ends"), [("share", True), ("mask", True), ("agree", False), ("unmask", True)]
)
def test_rejection_of_the_last_steps_is_harmless(step, ends):
    driver = MachineHarness()
    begin_attempt(driver)
    answer_step(driver, step)
    lines = list_lines(driver.handle(ReceiptReceived(driver.make_receipt("rejected", reason="too late"))))
    is_warned = "round 1: the aggregator rejected the update: too late" in lines
    assert is_warned == (step in ("share", "mask"))
    assert bool(driver.list(ForgetPendingTask)) == ends


def test_repeated_step_is_answered_again_after_the_round():
    """The aggregator repeats a step after it restarts."""
    driver = MachineHarness()
    begin_attempt(driver)
    for step in ("share", "mask", "agree", "unmask", "unmask"):
        answer_step(driver, step)
        driver.handle(ReceiptReceived(driver.make_receipt()))
    assert len(driver.list(AnswerStep)) == 5 and len(driver.list(PublishMetrics)) == 1


def test_client_sends_a_limited_number_of_masked_vectors_in_a_round():
    """A repeated step gets the same vector, which counts once."""
    driver = MachineHarness()
    for count in range(MAX_ATTEMPTS):
        begin_attempt(driver, attempt=f"e{count}")
        for step in ("share", "mask", "mask"):
            answer_step(driver, step, f"e{count}")
            driver.handle(ReceiptReceived(driver.make_receipt()))
    assert len(driver.list(BeginAttempt)) == MAX_ATTEMPTS
    lines = list_lines(driver.handle(TaskReceived(make_masked_task(attempt="last"))))
    assert any("in 8 attempts at this round, and takes part in no further one" in line for line in lines)
    assert any("a restart of this device allows 8 more" in line for line in lines)
    assert driver.list_messages(Begin)[-1].sha256 == EMPTY_ANSWER.sha256
    driver.handle(ReceiptReceived(driver.make_receipt()))
    driver.handle(TaskReceived(make_masked_task(number=2, attempt="next")))
    assert driver.list(Train)[-1].task.round == 2, "a later round has attempts of its own"


def test_attempts_without_a_masked_vector_do_not_count():
    """An aggregator that restarts again and again asks for keys each time, and learns nothing from them."""
    driver = MachineHarness()
    for count in range(3 * MAX_ATTEMPTS):
        begin_attempt(driver, attempt=f"e{count}")
        assert answer_step(driver, "share", f"e{count}").size == 16
        driver.handle(ReceiptReceived(driver.make_receipt()))
    assert answer_step(driver, "mask", f"e{count}").size == 16


def test_complaints_do_not_count_as_masked_vectors():
    """A device that cannot open shares complains in place of its vector, by an answer of 9 bytes here."""
    driver = MachineHarness()
    for count in range(2 * MAX_ATTEMPTS):
        begin_attempt(driver, attempt=f"e{count}")
        assert answer_step(driver, "mask", f"e{count}", size=9).size == 9
        driver.handle(ReceiptReceived(driver.make_receipt("rejected", reason="c1 sent bad shares")))
    assert len(driver.list(BeginAttempt)) == 2 * MAX_ATTEMPTS


def test_new_keys_in_an_attempt_keep_the_count_of_vectors():
    """The driver could draw no keys, and the aggregator repeats the task of the attempt."""
    driver = MachineHarness()
    for count in range(MAX_ATTEMPTS):
        begin_attempt(driver, attempt=f"e{count}")
        answer_step(driver, "mask", f"e{count}")
        driver.handle(ReceiptReceived(driver.make_receipt()))
        driver.handle(TaskReceived(make_masked_task(attempt=f"f{count}")))
        if driver.list(BeginAttempt)[-1].task.nonce == make_masked_task(attempt=f"f{count}").nonce:
            driver.handle(TrainingFailed(make_masked_task(attempt=f"f{count}"), "no random numbers"))
    assert driver.list_messages(Begin)[-1].sha256 == EMPTY_ANSWER.sha256


def test_step_after_failed_keys_gets_an_empty_answer():
    driver = MachineHarness()
    driver.handle(TaskReceived(make_masked_task()))
    driver.train("1")
    driver.handle(TrainingFailed(make_masked_task(), "its plan trains no shared model"))
    driver.handle(TaskReceived(make_masked_task("share")))
    assert not driver.list(AnswerStep)
    assert driver.list_messages(Begin)[-1].sha256 == EMPTY_ANSWER.sha256


def test_masked_update_is_never_sent_as_a_late_update():
    """A later task with the nonce of the attempt, which only somebody with the aggregator's key can send."""
    driver = MachineHarness()
    task = make_task(1, codec=MASKED_CODEC, nonce="e-advertise", max_staleness=1)
    driver.handle(TaskReceived(task))
    driver.train("1")
    driver.handle(MaskedAnswerReady(task, "d" * 64, 7))
    later = make_task(2, codec=MASKED_CODEC, nonce="e-advertise", max_staleness=1)
    driver.handle(TaskReceived(later))
    assert not driver.list(SavePendingTask)
    assert {begin.sha256 for begin in driver.list_messages(Begin)} == {"d" * 64}
    restarted = MachineHarness(SavedClient(answered=make_answered(), pending=task, masked_sessions=("s1",)))
    restarted.handle(TaskReceived(later))
    assert not restarted.list_messages(Begin)


tasks = st.builds(
    make_task,
    st.integers(1, 3),
    st.sampled_from(["federate", "federate", "personalize", "share", "mask"]),
    codec=st.sampled_from(["fp32", MASKED_CODEC]),
    nonce=st.sampled_from(["e-advertise", "e-share", "f-advertise"]),
    max_staleness=st.integers(0, 2),
    started=st.integers(1, 2),
    granted=st.booleans(),
)


@given(st.lists(st.one_of(tasks, st.sampled_from(["train", "answer", "ok", "missing", "rejected", "load"]))))
def test_no_update_of_a_masked_session_leaves_the_client_without_masks(events):
    driver = MachineHarness()
    digests = iter(range(1000))
    updates = set()
    for event in events:
        before = len(driver.actions)
        is_masked = bool(driver.list(SaveMaskedSession))
        play(driver, event, digests, updates)
        for action in driver.actions[before:] if is_masked else ():
            named = getattr(action, "message", action)
            assert not isinstance(named, Begin | PublishChunk) or named.sha256 not in updates


def play(driver, event, digests, updates):
    """Play one event, and add the digest of a trained update to `updates`."""
    if not isinstance(event, str):
        driver.handle(TaskReceived(event))
    elif event == "train" and driver.list(Train):
        task = driver.list(Train)[-1].task
        answer = make_answer(f"{next(digests):x}"[-1], metrics=METRICS)
        if task.phase == "federate":
            updates.add(answer.sha256)
        driver.handle(Trained(task, answer))
    elif event == "answer" and (asked := [*driver.list(BeginAttempt), *driver.list(AnswerStep)]):
        driver.handle(MaskedAnswerReady(getattr(asked[-1], "task", None) or asked[-1].step, "f" * 64, 7))
    elif event == "load":
        driver.handle(LinkLoad(0))
    elif event in ("ok", "missing", "rejected") and driver.list_messages(Begin):
        driver.handle(ReceiptReceived(driver.make_receipt(event, missing=((0, 1),))))
