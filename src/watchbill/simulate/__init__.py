"""The simulator: the real core in a world of virtual time, which may delay, drop, repeat, fail and lie.

`world` plays the engines, the callers and the machine; `invariants` judges every step from the world's own truth,
never from the core's books; `scenario` reads traffic from TOML files; `report` sums a run up.
"""
