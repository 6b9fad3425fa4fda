"""Keys of later versions, refused by name, so that a correct key is not taken for a typing error.

Design and docs of later versions name these keys. Accepting them without a word would be a lie: the operator
would believe in a protection or a schedule that is not there. A feature that is built loses its line here.
"""

__all__ = ["NOT_ACTED_ON", "planned_feature", "planned_value"]

#: Place in the file -> what it would configure. "*" is any name.
_KEYS: dict[tuple[str, ...], str] = {
    ("fleet", "durability"): "batches without syncs",
    ("reactor",): "a reactor set up by the config; it takes its list from its own command line",
    ("server", "keys", "*", "may_pin"): "pinning by callers",
    ("policy", "admission"): "another admission rule",
}
_VALUES: dict[tuple[tuple[str, ...], str], str] = {
    (("lanes", "*", "class"), "leased"): "leases for other machines",
}

#: Keys that are read into the catalog and that nothing acts on yet: `config check` says so.
NOT_ACTED_ON: dict[tuple[str, ...], str] = {}


def planned_feature(place: tuple[str, ...]) -> str | None:
    """The feature that a key, given with its names as "*", would configure in a later version."""
    return _KEYS.get(place)


def planned_value(place: tuple[str, ...], value: object) -> str | None:
    """The feature that this value of a key would choose in a later version."""
    return _VALUES.get((place, value)) if isinstance(value, str) else None
