"""Online devices according to their statuses."""

from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.server.presence import Presence
from edgefl.protocol.wire.messages import Status

names = st.sampled_from(("a", "b", "c"))


def make_status(boot_id, online, client_id="pi-1"):
    return Status(
        client_id=client_id, boot_id=boot_id, online=online, born=0.0, num_samples=1, version="0", ts=0.0
    )


def test_a_last_will_of_an_earlier_boot_is_ignored():
    presence = Presence()
    for boot_id in ("one", "two"):
        presence.update(make_status(boot_id, True))
    presence.update(make_status("one", False))
    assert presence.list_online() == ("pi-1",)
    presence.update(make_status("two", False))
    assert presence.list_online() == ()


@given(st.lists(st.tuples(names, st.booleans(), st.booleans())))
def test_online_count_matches_the_list_of_online_devices(changes):
    presence = Presence()
    for client_id, is_online, is_forgotten in changes:
        presence.update(make_status("boot", is_online, client_id))
        if is_forgotten:
            presence.forget(client_id)
        assert presence.num_online == len(presence.list_online())
