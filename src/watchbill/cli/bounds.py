"""Bounds of the command line: how long it waits, how much it reads and shows. Units are in the names."""

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
#: Lines of `spool list` for a person who does not say how many.
CLI_SPOOL_ROWS = 50
#: Files that `spool list --json` looks at between two writes.
CLI_SPOOL_PIECE = 100
#: Events that `spool enqueue` commits together, and their bytes.
CLI_ENQUEUE_BATCH_MAX = 1_000
CLI_ENQUEUE_BATCH_BYTES_MAX = 8 * 2**20
#: How often a drain on the command line looks at the clock and redraws its bar.
CLI_DRAIN_LOOK_S = 0.2
#: How long `config check` waits for the engines that it can only call on.
CLI_CALL_S = 2.0
#: Files and folders that a drain names when it may not touch them.
CLI_BARRED_SHOWN = 5

#: Alerts that `status` shows to people; --json has all that the daemon keeps.
CLI_ALERTS_SHOWN = 5
