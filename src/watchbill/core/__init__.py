"""The pure core: which models are in memory, and which request is served next.

It has no I/O, clock, randomness, await or logging.

`machine.Machine.step(event, now)` is the only way in; the actions it returns are the only way out.
"""
