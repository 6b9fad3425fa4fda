"""Every bound of the processes, named, with its unit: how they start and stop, and what they may write."""

#: The stop sequence: ask, then TERM, then KILL. Together under ten seconds: promise P6 and fault R35.
STOP_ASK_MS = 3_000
STOP_TERM_MS = 4_000
STOP_KILL_MS = 2_000
#: The time between TERM and KILL that a guard gives the tree of a dead daemon: no caller waits for a clean end.
ORPHAN_TERM_MS = 2_000
#: A guard starts in 30 ms; on a machine that swaps it may take seconds.
GUARD_START_MS = 10_000
#: How long a guard may be silent beyond its own bounds before the daemon kills the tree itself.
GUARD_GRACE_MS = 1_000
#: A short command that is run to its end: a stop command, `llama-server --help`.
COMMAND_MS_MAX = 10_000
COMMAND_OUTPUT_BYTES_MAX = 2**20
#: Every log of ours: 64 MiB x 5.
LOG_FILE_BYTES_MAX = 64 * 2**20
LOG_FILES_MAX = 5
#: The bytes that an engine may log per second; llama.cpp at its most verbose writes some 2 MiB. A program that writes
#: without pause made 600 MiB per second.
LOG_BYTES_PER_S_MAX = 8 * 2**20
#: The part of a log that goes into the error of a failed load.
LOG_TAIL_LINES_MAX = 20
LOG_TAIL_BYTES_MAX = 16 * 2**10
LOG_LINE_CHARS_MAX = 400
#: An engine whose port was taken between our choice and its bind gets another one, up to this often.
PORT_ATTEMPTS_MAX = 3
PORT_DRAWS_MAX = 100
#: How long a daemon may take to exit: after the first signal (for running answers, spools and the stop sequence), after
#: a second signal, and once all its work is done.
LEAVE_MS_MAX = 60_000
LEAVE_NOW_MS_MAX = 10_000
LEAVE_LAST_MS_MAX = 5_000
#: Registry records are a few hundred bytes.
ENGINE_RECORD_BYTES_MAX = 16 * 2**10
#: How long the first program in a sandbox may take, when an agent tries what this machine can do.
SANDBOX_TRY_S = 10
#: What is kept of a task's standard output and of its errors: the end in memory, the beginning in a file.
TASK_OUTPUT_MEMORY_BYTES = 32 * 2**10
TASK_OUTPUT_FILE_BYTES = 16 * 2**20
#: A task that writes faster is slowed down: `yes` would keep the guard of all tasks busy.
TASK_OUTPUT_BYTES_PER_S = 64 * 2**20
