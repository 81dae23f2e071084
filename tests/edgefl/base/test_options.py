"""Options are checked against their defaults."""

import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.options import check_options, complete_options, parse_options, suggest_nearest

DEFAULTS = {"rounds": 20, "alpha": 0.5, "flip": False, "name": "", "sizes": (), "table": {}}


def test_values_get_the_type_of_the_default():
    checked = check_options("[x] y", DEFAULTS, {"alpha": 2, "sizes": [1, 2], "rounds": 3, "table": {"a": 1}})
    assert checked == {"alpha": 2.0, "sizes": (1, 2), "rounds": 3, "table": {"a": 1}}
    assert type(checked["alpha"]) is float


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 2.5}, r"\[x\] y: rounds is 2.5, expected a whole number such as 20$"),
        ({"rounds": True}, "rounds is True, expected a whole number"),
        ({"alpha": True}, "alpha is True, expected a number such as 0.5"),
        ({"flip": 1}, "flip is 1, expected true or false$"),
        ({"name": 1}, "name is 1, expected text$"),
        ({"sizes": 3}, "sizes is 3, expected a list$"),
        ({"table": 3}, "table is 3, expected a table$"),
        ({"alhpa": 1.0}, r"\[x\] y has an unknown option 'alhpa'; did you mean 'alpha'\?$"),
        ({"zzz": 1.0}, "unknown option 'zzz'; expected one of rounds, alpha, flip, name, sizes, table$"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_options("[x] y", DEFAULTS, options)


def test_an_error_names_the_remedy_and_the_keys_of_the_table():
    with pytest.raises(ConfigError, match="unknown option 'old'; write new"):
        check_options("[x] y", DEFAULTS, {"old": 1}, remedies={"old": "write new"})
    with pytest.raises(ConfigError, match=r"\[x\] has an unknown key 'abcd'; did you mean 'abcde'"):
        check_options("[x]", {}, {"abcd": 1}, further_keys=["abcde"], noun="key")
    with pytest.raises(ConfigError, match=r"\[x\] alpha is 'a', expected a number"):
        check_options("[x]", DEFAULTS, {"alpha": "a"})
    with pytest.raises(ConfigError, match="unknown option 'a'; it has none; remove it"):
        check_options("[x] y", {}, {"a": 1})


def test_lists_of_data_sets_contain_whole_numbers():
    assert complete_options("[x] y", {"sizes": (), "a": 1}, {"sizes": [3]}) == {"sizes": (3,), "a": 1}
    with pytest.raises(ConfigError, match=r"sizes is \[1.5\], expected a list of whole numbers"):
        complete_options("[x] y", {"sizes": ()}, {"sizes": [1.5]})


def test_texts_are_parsed_by_the_types_of_the_defaults():
    pairs = ("rounds=3", "alpha = 1", "flip=true", "name=a=b", "sizes=1,2")
    defaults = {key: value for key, value in DEFAULTS.items() if key != "table"}
    parsed = parse_options("[x] y", defaults, pairs)
    assert parsed == {"rounds": 3, "alpha": 1.0, "flip": True, "name": "a=b", "sizes": (1, 2)}
    with pytest.raises(ConfigError, match=r"option .rounds., expected key=value such as alpha=0\.5"):
        parse_options("[x] y", defaults, ("rounds",))
    with pytest.raises(ConfigError, match="rounds is 'x', expected a whole number"):
        parse_options("[x] y", defaults, ("rounds=x",))


def test_a_remedy_lists_all_choices_if_none_is_similar():
    assert suggest_nearest("lenet", ["lenet5", "vgg16"]) == "did you mean 'lenet5'?"
    assert suggest_nearest("zzz", ["lenet5", "vgg16"]) == "expected one of lenet5, vgg16"
