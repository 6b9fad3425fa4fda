"""Every bound of a simulation, named, with its unit."""

#: A scenario of `simulate`; one with a hundred models has some 20 KiB.
SCENARIO_BYTES_MAX = 2**20
#: A replay reads this many lines, for this many seeds.
TRACE_LINES_MAX = 5_000_000
SIMULATE_SEEDS_MAX = 1_000
#: The newest requests of the last day that are replayed: some 16 s of a slow core for two machines.
WHAT_IF_REQUESTS_MAX = 10_000
#: A simulated run as a picture: spans of models in memory, and points of each of its curves.
TIMELINE_SPANS_MAX = 20_000
TIMELINE_POINTS_MAX = 20_000
#: Agents that `plan simulate` plays with.
SIMULATED_AGENTS_MAX = 1_000
#: Kinds of agents of which one more is tried.
SIMULATED_KINDS_MAX = 8
