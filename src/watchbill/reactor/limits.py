"""Every bound of the host reactor, named, with its unit."""

#: An intent or an answer is a few hundred bytes.
INTENT_BYTES_MAX = 4 * 2**10
#: How long an intent may live between its writing and its expiry, and the allowed difference of two clocks.
INTENT_LIFE_MS_MAX = 600_000
INTENT_SKEW_MS_MAX = 5_000
#: The daemon waits this long for a reactor; one that runs answers a start within REACTOR_START_LOOK_MS.
REACTOR_ANSWER_MS = 20_000
REACTOR_ANSWER_POLL_MS = 25
#: How long a unit may be "activating" before the reactor answers and the daemon checks its health itself.
REACTOR_START_LOOK_MS = 5_000
REACTOR_STATE_POLL_MS = 100
#: systemctl itself; a stop lasts as long as the unit's TimeoutStopSec, 90 s by default.
SYSTEMCTL_MS_MAX = 120_000
SYSTEMCTL_OUTPUT_BYTES_MAX = 4 * 2**10
#: Commands at the same time: one per unit.
REACTOR_WORKERS_MAX = 16
#: Intents taken in one scan of the folder, and those that may wait for one unit; more are refused.
REACTOR_INTENTS_MAX = 256
REACTOR_UNIT_INTENTS_MAX = 16
#: Without inotify, and for cleaning up, the folder is scanned this often.
REACTOR_LOOK_MS = 1_000
#: Answers and other files are removed when they are older than this.
REACTOR_KEEP_MS = 3_600_000
REACTOR_CLEAN_MS = 60_000
#: The part of systemctl's output that goes into an answer.
REACTOR_TEXT_CHARS_MAX = 1_000
REACTOR_LOG_BYTES_MAX = 16 * 2**20
