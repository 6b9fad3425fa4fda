"""The pure core: decides who is in memory and who is served next. No I/O, clock, randomness, await or logging.

`machine.Machine.step(event, now)` is the only way in; the actions it returns are the only way out.
"""
