"""Drain a spool once: for runs under strace that do not survive it."""

import sys

from watchbill.spool import Corpus, Drain, Spool

with Spool(sys.argv[1], attempts=100) as spool:
    Drain(spool, Corpus(sys.argv[2]), batch=4).run_once()
