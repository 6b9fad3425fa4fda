"""The line before a model answers from its heaps what a look at everybody would say."""

import random

from watchbill.catalog import WorkClass
from watchbill.core.line import Line
from watchbill.core.messages import Request


def test_the_oldest_and_the_most_impatient_are_those_a_look_at_everybody_finds() -> None:
    """LANE-01: whoever joins, leaves and comes back with an old arrival, in any order."""
    draw, line = random.Random(7), Line()
    here: dict[str, tuple[Request, int]] = {}
    gone: list[Request] = []
    for step in range(5_000):
        if here and draw.random() < 0.48:
            id = draw.choice(sorted(here))
            gone.append(line.leave(id))
            del here[id]
        else:
            back = bool(gone) and draw.random() < 0.3
            fresh = Request(f"r{step}", "m", "lane", draw.choice(list(WorkClass)), step // 3, 1_000, 1_000)
            request = gone.pop(draw.randrange(len(gone))) if back else fresh
            due = step + draw.randrange(1_000)
            line.join(request, due)
            here[request.id] = (request, due)
        if here and step % 3 == 0:
            assert line.oldest() == min((r for r, _ in here.values()), key=lambda r: (r.arrived_at, r.id))
            first = line.earliest_due()
            assert first is not None
            assert first[0] == min(due for _, due in here.values())
        assert len(line) == len(here)


def test_requests_that_left_are_not_kept() -> None:
    """LANE-08: a model that is served for weeks keeps nothing of those that waited for it."""
    for is_asked in (False, True):
        line = Line()
        stays = Request("stays", "m", "lane", WorkClass.INTERACTIVE, 0, 1_000, 1_000)
        line.join(stays, 10**9)
        for number in range(1, 5_000):
            line.join(Request(f"r{number}", "m", "lane", WorkClass.INTERACTIVE, number, 1_000, 1_000), 10**9)
            if is_asked:
                assert line.oldest() is line.oldest_of_top() is stays
            line.leave(f"r{number}")
        kept = (getattr(line, name) for name in Line.__slots__)
        assert len(repr(list(kept))) < 20_000
