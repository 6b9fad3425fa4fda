"""Every bound of the command line, named, with its unit: how long it waits, and how much it shows."""

#: The daemon is on this machine: without an answer by then it is stuck.
CLI_ANSWER_TIMEOUT_S = 10.0
#: Loading the largest models from a slow disk takes minutes; past this the daemon itself has given up.
CLI_LOAD_TIMEOUT_S = 3600.0
#: Streams carry a keep-alive at least every 15 s; four missed ones mean that the daemon is gone.
CLI_STREAM_SILENCE_S = 75.0
CLI_ANSWER_BYTES_MAX = 64 * 2**20
CLI_LINE_BYTES_MAX = 2**20
#: A detached daemon that fetches its embedded model first needs minutes on a slow line.
CLI_READY_TIMEOUT_S = 900.0
#: The daemon promises to be gone within 30 s of SIGTERM.
CLI_DOWN_TIMEOUT_S = 30.0
CLI_DOWN_NOW_TIMEOUT_S = 5.0
CLI_POLL_INTERVAL_S = 0.1
#: How long `pull` waits for a running daemon to serve a new file.
CLI_SERVED_S = 10
CLI_LOG_TAIL_LINES = 200
CLI_LOG_TAIL_BYTES_MAX = 2**20
CLI_CHAT_MESSAGES_MAX = 1000
#: Model files that `doctor` names one by one.
CLI_DOCTOR_FILES_MAX = 8
#: Default number of lines of `spool list`.
CLI_SPOOL_ROWS = 50
#: Files that `spool list --json` looks at between two writes.
CLI_SPOOL_PIECE = 100
#: Events that `spool enqueue` commits together, and their bytes.
CLI_ENQUEUE_BATCH_MAX = 1_000
CLI_ENQUEUE_BATCH_BYTES_MAX = 8 * 2**20
#: How often a drain on the command line checks the clock and redraws its bar.
CLI_DRAIN_LOOK_S = 0.2
#: How long `config check` waits for the engines that it can only call on.
CLI_CALL_S = 2.0
#: Files and folders that a drain names when it may not touch them.
CLI_BARRED_SHOWN = 5
#: What is read of one log.
CLI_LOG_BYTES_MAX = 64 * 2**20
#: Tasks and batches that `plan status` shows to people, and how often it looks again.
CLI_TASKS_SHOWN = 20
CLI_BATCHES_SHOWN = 10
#: Tasks of a plan whose commands `plan check` asks the rules about: a few seconds' work.
CLI_TASKS_RULED = 5_000
CLI_FOLLOW_S = 1.0
#: How long a command waits for the coordinator to read its request, more than one look at a network mount takes, and
#: how often it looks.
CLI_ANSWER_S = 6.0
CLI_ANSWER_LOOK_S = 0.05
#: A request in the inbox, with its inputs.
CLI_REQUEST_BYTES_MAX = 4 << 20
#: Alerts that `status` shows to people; --json has all that the daemon keeps.
CLI_ALERTS_SHOWN = 5
#: `watch`: seconds between two looks at the daemon, lines of the journal it shows, actions that run beside it.
WATCH_LOOK_S = 1.0
WATCH_JOURNAL_LINES = 200
WATCH_ACTIONS_MAX = 8
#: How often the command line renews its claim on a device of another machine.
CLAIM_RENEW_EVERY_S = 20.0
#: How often `gpus --follow` reads the heartbeats.
GPUS_LOOK_MS = 2_000
#: How often the command line asks what has become of a batch that it follows.
CLI_BATCH_LOOK_S = 0.5
#: A config of another program that is imported: its bytes, and its values with aliases counted each time.
IMPORT_BYTES_MAX = 2**20
IMPORT_VALUES_MAX = 100_000
#: Rounds in which values that would be refused are taken out: one may hide another.
IMPORT_ROUNDS_MAX = 16
#: Answers of `gpus --bench` per card, and how long each is.
BENCH_ROUNDS = 3
BENCH_TOKENS = 64
#: After so long without a beat people are told that the coordinator is silent.
COORDINATOR_SILENCE_SHOWN_MS = 30_000
