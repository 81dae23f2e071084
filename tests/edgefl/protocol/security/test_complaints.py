"""Clients that are excluded after complaints about shares that are not genuine."""

from hypothesis import given
from hypothesis import strategies as st

from edgefl.protocol.security.secagg.complaints import Fault, find_excluded


def test_excluded_clients_match_hand_worked_cases():
    """Six clients, threshold 4, so two may be at fault."""
    assert find_excluded({}, 2) == {}
    assert set(find_excluded({"a": ["f"], "b": ["f"], "c": ["f"]}, 2)) == {
        "f"
    }  # three cannot all be at fault
    assert set(find_excluded({"f": ["a", "b", "c"]}, 2)) == {"f"}
    assert set(find_excluded({"a": ["f"]}, 2)) == {"a", "f"}  # either of the two
    assert set(find_excluded({"a": ["f"], "b": ["f"]}, 2)) == {
        "a",
        "f",
    }  # f is already excluded when the complaint of b is judged
    assert set(find_excluded({"a": ["f"], "b": ["e"]}, 2)) == {"a", "b", "e", "f"}
    assert set(find_excluded({"a": ["f"], "b": ["f", "a"], "c": ["f"], "d": ["b"]}, 2)) == {"f", "a", "b"}
    assert find_excluded({"a": ["a"]}, 2) == {"a": Fault("cannot open its own shares")}


def test_fault_reasons_name_the_other_client():
    excluded = find_excluded({"a": ["f"]}, 2)
    both = "one of the two is at fault: check the logs of both"
    assert excluded == {
        "a": Fault("accuses f of a sealed share that is not genuine", both),
        "f": Fault("sealed a share that is not genuine, according to a", both),
    }
    assert find_excluded({each: ["f"] for each in "abc"}, 2)["f"] == Fault(
        "sealed shares that are not genuine for a, b, c", "update or revoke it"
    )
    assert (
        find_excluded({"f": "abc"}, 2)["f"].reason
        == "accuses 3 clients of shares that are not genuine, expected at most 2"
    )


@given(st.integers(3, 12), st.data())
def test_excluded_honest_clients_never_outnumber_excluded_faulty_clients(count, data):
    """Honest clients accuse only faulty clients. Faulty clients may accuse any client."""
    tolerated = count // 3
    clients = list(range(count))
    at_fault = data.draw(st.sets(st.sampled_from(clients), max_size=tolerated))
    complaints = {}
    for client in clients:
        possible = clients if client in at_fault else sorted(at_fault)
        accused = data.draw(st.sets(st.sampled_from(possible))) if possible else set()
        if accused:
            complaints[f"{client:02}"] = [f"{each:02}" for each in accused]
    excluded = {int(each) for each in find_excluded(complaints, tolerated)}
    assert len(excluded - at_fault) <= len(excluded & at_fault)
    assert bool(excluded) == bool(complaints)
    # each accusation excludes one of its two clients, so the next attempt contains no accusation
    assert all(
        int(accuser) in excluded or int(accused) in excluded
        for accuser, all_accused in complaints.items()
        for accused in all_accused
    )
