"""Every bound of the runtime, named, with its unit: alerts, views, spools, claims and programs beside the daemon."""

# ------------------------------------------------------------------ scheduler and journal

#: How often a copy of the scheduler that is made in such shares begins anew because of an event.
COPY_TRIES_MAX = 3
#: Blocks of memory from this size on have their own mapping, which goes back to the system with them.
HEAP_MAPPED_BYTES_MIN = 128 * 2**10
#: After an engine failed a request before its first byte: its death is about to be reported to the scheduler.
RETRY_PAUSE_MS = 200
#: A search in the journal: lines that are answered, bytes that are read from the end of its files, and how far back.
JOURNAL_FOUND_MAX = 5_000
JOURNAL_SEARCHED_BYTES_MAX = 64 * 2**20
JOURNAL_BLOCK_BYTES = 2**17
JOURNAL_SEARCHED_HOURS_MAX = 24 * 31
#: Recorded lines of a trace reach the file at the latest after this.
TRACE_FLUSH_MS = 1_000
#: The traffic of the last day: a request takes some 180 bytes, so that these files hold about 180,000.
TRAFFIC_FILE_BYTES_MAX = 4 * 2**20
TRAFFIC_FILES_KEPT = 8
#: Lines that wait for the disk, and how many of them are encoded in one go, while which nothing else runs.
TRAFFIC_WAITING_MAX = 8_192
TRAFFIC_AT_ONCE = 256
TRAFFIC_CLOSE_MS = 2_000
TRAFFIC_HOURS = 24
#: A simulation that the page asks for: the time and size of its answer.
WHAT_IF_MS_MAX = 120_000
WHAT_IF_ANSWER_BYTES_MAX = 8 * 2**20

# ------------------------------------------------------------------ alerts, operators and views

#: Alerts that wait to be sent; further ones are only recorded.
ALERTS_WAITING_MAX = 64
#: The last alerts that `status` shows.
ALERTS_KEPT_MAX = 20
#: How long a command or webhook may take with one alert.
ALERT_SEND_MS = 10_000
#: `/ready` fails when the scheduler has not run for this long.
READY_TURN_MS = 15_000
#: How often the lateness of the event loop's timers is measured.
LAG_LOOK_MS = 100
#: Learned figures are saved this often.
LEARNED_SAVE_MS = 5_000
#: How long an operator's `load` or `evict` waits for its end.
OPERATOR_MS_MAX = 900_000
#: A driver ends a load at its limit by itself, with the engine's last lines; after this the load is ended for it.
LOAD_OVERTIME_MS = 5_000
#: This many starts, or ends, are kept before they are handed on.
TALLY_MAX = 2048
#: This many requests of a list get a current forecast: one takes a fraction of a millisecond, and lines may be long.
FORECASTS_MAX = 100
#: The same where the list is made twice a second.
FORECASTS_ON_SCREEN_MAX = 20

# ------------------------------------------------------------------ library

#: Names that callers made. Each is an alias, or a model that the scheduler knows.
LIBRARY_ENTRIES_MAX = 500
LIBRARY_BYTES_MAX = 8 * 2**20
#: A blob that is older than this and that no name uses is removed at the next start.
BLOB_UNUSED_MS = 86_400_000

# ------------------------------------------------------------------ probes

#: How often the memory of the engines' own processes is read; it costs milliseconds.
PROCESS_LOOK_MS = 5_000
#: PSI `some avg10` above this counts as an emergency: the machine stalls for memory.
PRESSURE_STALL_PERCENT_MAX = 20.0
#: Looking for cards at the start.
CARDS_FOUND_S_MAX = 10.0

# ------------------------------------------------------------------ spending

#: A tier whose server does not accept this machine is asked again after this.
TIER_AGAIN_MS = 60_000
#: One whose server wants to be asked later, and does not say when; and the bounds of what is believed where it does.
TIER_BUSY_MS = 5_000
TIER_BUSY_MS_MIN = 1_000
TIER_BUSY_MS_MAX = 3_600_000
#: One whose server cannot be reached.
TIER_AWAY_MS = 5_000
#: Time that a burst tier runs is charged this often: a machine that runs for less is not noticed.
TIER_CHARGE_MS = 1_000
#: Days whose spending stays on disk, and the largest file that is read of one.
SPENDING_DAYS_KEPT = 31
SPENDING_BYTES_MAX = 256 * 2**20

# ------------------------------------------------------------------ spools

#: A drain that failed as a whole (a folder that cannot be made, a broken schema) is started again after this ...
DRAIN_AGAIN_MS = 1_000
#: ... and at the latest after this.
DRAIN_AGAIN_MS_MAX = 60_000
#: How long a drain gets at shutdown to finish its batch; unfinished events are delivered again later.
DRAIN_STOP_MS = 8_000
#: How often a spool's keeper checks its workers, and how often at most it reports poisoned events.
DRAIN_LOOK_MS = 1_000
DRAIN_POISON_TOLD_MS = 60_000
#: The share of a keeper's time that may go into counting the events of its spool.
DRAIN_COUNT_SHARE = 0.02
#: How often a keeper looks whether all servers of a broker keep copies of its events, and at the latest counts them.
DRAIN_SERVERS_MS = 10_000
#: How long a drain's thread may hold the interpreter while the event loop waits for it.
DRAIN_SWITCH_MS = 0.5
#: Finished events are compacted and deleted this often.
DONE_COLLECT_MS = 3_600_000
#: Captured events that wait for the disk, and their text; more are dropped, counted and alerted.
CAPTURE_EVENTS_MAX = 10_000
CAPTURE_CHARS_MAX = 64 * 2**20
CAPTURE_ANSWER_BYTES_MAX = 8 * 2**20
#: The long texts of a prompt are put back up to this size, at once; a larger prompt is captured without them.
CAPTURE_PROMPT_BYTES_MAX = 4 * 2**20
#: Captured events of one commit.
CAPTURE_BATCH_MAX = 256
#: A spool that cannot take captured events is tried again after this, growing to the last.
CAPTURE_AGAIN_MS = 100
CAPTURE_AGAIN_MS_MAX = 5_000
#: How long captured events get at shutdown to reach the disk.
CAPTURE_STOP_MS = 5_000

# ------------------------------------------------------------------ claims, loans and background tasks

#: Failed readings in a row before a probe raises an alert.
PROBE_FAILURES_MAX = 3
#: How often protected processes are searched.
PROTECTED_LOOK_MS = 5_000
#: How often the holders of maintenance claims are checked, and how long a remote claim lasts without renewal.
CLAIM_LOOK_MS = 1_000
CLAIM_RENEW_MS = 60_000
#: Loans at the same time.
LOANS_MAX = 1_000
#: The longest reason that a claim may carry.
CLAIM_REASON_CHARS_MAX = 200
#: A background task's command may run this long, and this much of its output goes into the prompt.
TASK_COMMAND_MS = 600_000
TASK_OUTPUT_CHARS_MAX = 20_000
TASK_TOKENS_MAX = 512
#: The longest answer to a background prompt, however many tokens the engine sends.
TASK_ANSWER_CHARS_MAX = 2**20
#: A file of answers to background prompts is rotated beyond this size.
TASK_ANSWERS_BYTES_MAX = 2**20

# ------------------------------------------------------------------ programs beside the daemon

#: A program beside this one that ended: the first wait before it is restarted, doubled up to the last, and how long
#: it has to run for the first to count again.
CHILD_AGAIN_MS = (1_000, 60_000)
CHILD_STEADY_MS = 60_000
#: How often one with a watch is looked at.
CHILD_LOOK_MS = 3_000
#: Characters that are shown of the last line of a program that ended.
CHILD_WORDS_MAX = 300
#: How long `up` waits until its broker answers.
NATS_START_MS = 20_000
#: How long that broker may take to say whether it still stores what it is sent, and how many times in a row it says no
#: before it is restarted.
NATS_HEALTH_MS = 2_000
NATS_UNSOUND_LOOKS = 2
#: The largest event of that broker, with its headers, in bytes: one of the spool's own largest.
NATS_PAYLOAD_BYTES_MAX = 17 * 1024 * 1024
#: What it may keep on the disk and in memory, in bytes.
NATS_FILE_BYTES_MAX = 64 * 1024**3
NATS_MEMORY_BYTES_MAX = 64 * 1024**2
