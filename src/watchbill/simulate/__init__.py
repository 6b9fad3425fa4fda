"""The simulator: the real core in virtual time, with engines and callers that may delay, drop, repeat, fail and lie.

`world` plays the engines, the callers and the machine. `invariants` judges every step by the world's own state, never
by the core's ledger. `scenario` reads traffic from TOML files. `report` sums up a run.
"""
