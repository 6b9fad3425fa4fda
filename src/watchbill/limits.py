"""Every bound in Watchbill, by area. Each name ends in its unit; a count has none.

A queue, buffer, body, file, depth, retry or wait without a bound here is a bug: what is unbounded hangs or
grows. Each area appends a section of its own; a comment says why a figure is what it is.
"""

# ------------------------------------------------------------------ names

#: The longest names on the public hubs are about 130 characters with their quantisation suffix.
MODEL_NAME_CHARS_MAX = 200
#: Lanes, engines, groups, keys, plans: names that people type.
PLAIN_NAME_CHARS_MAX = 64
#: File names are built from several stems (model, task, attempt) and end at 255 bytes.
FILE_STEM_BYTES_MAX = 64
#: Linux's PATH_MAX and NAME_MAX.
PATH_BYTES_MAX = 4096
PATH_PART_BYTES_MAX = 255
REQUEST_ID_CHARS_MAX = 128
HEADER_TEXT_CHARS_MAX = 256

# ------------------------------------------------------------------ config

#: A hundred models with long prompts take some 50 KiB.
CONFIG_FILE_BYTES_MAX = 2**20
#: What is listed of a hopeless file; the rest is counted.
CONFIG_PROBLEMS_MAX = 100
#: An exbibyte and a hundred days: beyond them a figure is a slip of the pen.
SIZE_BYTES_MAX = 2**60
DURATION_MS_MAX = 100 * 86_400_000
CONCURRENCY_MAX = 1024
CONTEXT_TOKENS_MAX = 2**24
THREADS_MAX = 1024
QUEUE_LEN_MAX = 1_000_000
PARALLEL_LOADS_MAX = 64
BODY_BYTES_MAX = 2**30

# ------------------------------------------------------------------ root and command line

DAEMON_RECORD_BYTES_MAX = 4096
#: The daemon is on this machine: what has not answered by then is stuck.
CLI_ANSWER_TIMEOUT_S = 10.0
#: Loading the largest models from a slow disk takes minutes; past this the daemon itself has given up.
CLI_LOAD_TIMEOUT_S = 3600.0
#: Streams carry a sign of life every 15 s or less; four missed ones mean nobody is there.
CLI_STREAM_SILENCE_S = 75.0
CLI_ANSWER_BYTES_MAX = 64 * 2**20
CLI_LINE_BYTES_MAX = 2**20
#: A detached daemon that fetches its embedded model first needs minutes on a slow line.
CLI_READY_TIMEOUT_S = 900.0
#: The daemon promises to be gone within 30 s of SIGTERM.
CLI_DOWN_TIMEOUT_S = 30.0
CLI_DOWN_NOW_TIMEOUT_S = 5.0
CLI_POLL_INTERVAL_S = 0.1
CLI_LOG_TAIL_LINES = 200
CLI_LOG_TAIL_BYTES_MAX = 2**20
CLI_CHAT_MESSAGES_MAX = 1000
