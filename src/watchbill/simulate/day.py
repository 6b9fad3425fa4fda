"""The built-in day: the scenario of `watchbill simulate` without arguments.

A card holds about three of seven models, on a working day: interactive requests from eight to six, agents in the
afternoon, a backlog all night.
"""

from watchbill.simulate.scenario import Scenario

__all__ = ["day"]

_DAY = """
title = "A day on a 24 GB card with seven models, of which three fit beside each other"
duration = "1d"
look = "60s"
[devices."gpu:0"]
capacity = "24GB"
[models]
guard = { memory = "1GB", load = "2s", service = "0.3s", concurrency = 4, permanent = true }
chat = { memory = "9GB", load = "9s", service = "5s", concurrency = 4 }
code = { memory = "9GB", load = "9s", service = "8s", concurrency = 2 }
vision = { memory = "12GB", load = "14s", service = "6s" }
ledger = { memory = "7GB", load = "7s", service = "6s" }
digest = { memory = "7GB", load = "7s", service = "12s", concurrency = 2 }
judge = { memory = "18GB", load = "25s", service = "20s" }
[lanes]
people = { class = "interactive", max_wait = "60s" }
agents = { class = "normal", max_wait = "5m" }
backlog = { class = "background", max_wait = "2h" }
[[traffic]]
kind = "poisson"
models = { chat = 6, code = 2, vision = 1, guard = 3 }
lane = "people"
every = "60s"
start = "8h"
stop = "18h"
service = { mean = "5s", sigma = 0.6 }
[[traffic]]
kind = "poisson"
models = { chat = 4, judge = 1 }
lane = "people"
every = "20m"
service = { mean = "8s", sigma = 0.6 }
[[traffic]]
kind = "loop"
models = ["code"]
lane = "agents"
clients = 2
think = ["2s", "60s"]
start = "13h"
stop = "16h"
service = { mean = "8s", sigma = 0.6 }
[[traffic]]
kind = "poisson"
models = { ledger = 3, digest = 2, judge = 1 }
lane = "backlog"
every = "3m"
service = { mean = "12s", sigma = 0.6 }
"""


def day() -> Scenario:
    """The built-in scenario."""
    return Scenario.parse(_DAY, "day", "the built-in day")
