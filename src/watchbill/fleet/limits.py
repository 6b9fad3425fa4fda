"""Every bound of the fleet, named, with its unit: of agents, of coordinators and of the folder between them."""

# ------------------------------------------------------------------ folder, agents and coordinators

#: Marker, heartbeat, signal and other small files of the shared folder.
FLEET_FILE_BYTES_MAX = 2**20
#: A slip: commands, prompts and items of one task.
SLIP_BYTES_MAX = 64 * 2**20
#: Network file systems take 255 bytes, and a draft has a few more than its file.
SLIP_NAME_BYTES_MAX = 220
#: Names of slips that a process keeps as it has read them: more than a queue shows at a time.
SLIP_NAMES_READ_MAX = 4_096
#: What of a task's output rides in its result line.
RESULT_TAIL_CHARS_MAX = 4_096
#: How often a start that another one overtakes begins anew before it gives up.
FLEET_TRIES_MAX = 100
#: Shells within shells that a command line is taken apart through, and the parts it may have.
SHELL_DEPTH_MAX = 8
SHELL_PARTS_MAX = 1_000
#: A permissions.toml, and its rules.
PERMISSIONS_BYTES_MAX = 2**18
PERMISSION_RULES_MAX = 2_000
#: Files of rules that an agent keeps read.
PERMISSION_FILES_KEPT = 64
PERMISSION_RULE_CHARS_MAX = 10_000
#: How much of a command a message shows.
PERMISSION_SHOWN_CHARS_MAX = 200
#: Tasks or items in one line of a journal; a line has at most 16 MiB.
JOURNAL_PART_BYTES_MAX = 4 * 2**20
#: How long an agent or a coordinator may stand still before it counts as dead, by the reader's own clock.
SILENCE_MS_MAX = 90_000
#: A reader that has not looked for longer was paused, and with it the processes of its machine: it counts anew.
LOOK_GAP_MS_MAX = 30_000
#: How often the coordinator says that it lives.
COORDINATOR_BEAT_MS = 10_000
#: A coordinator of this machine whose record is older hangs: the next one waits for its silence and is not refused.
COORDINATOR_STIRS_MS = 25_000
#: Slips offered at a time: so many for each slot of the living agents, and never fewer than this, nor more.
RELEASE_PER_SLOT = 8
RELEASE_MIN = 32
RELEASE_MAX = 1_000
#: A question or an answer that is kept as a training sample.
SAMPLE_BYTES_MAX = 4 * 2**20
#: Batches that GPU memory of tasks is learned from, and what is asked for, in percent of the peak that was measured.
LEARNED_VRAM_BATCHES_MAX = 5
LEARNED_VRAM_PERCENT = 110
#: Batches and runs of a task that `plan simulate` learns times from, the newest first.
LEARNED_BATCHES_MAX = 20
LEARNED_RUNS_MAX = 1_000
#: Waiting times before the second, third and each further attempt.
BACK_OFF_MS = (10_000, 60_000, 300_000)
#: Dead agents under one task before a person has to look at it: it may be what kills them.
LOSSES_MAX = 5
#: An agent that cannot run a command, and one that asks to be run again: how often, before it counts as a failure.
NOT_RUNNABLE_MAX = 2
SOFT_STOPS_MAX = 100
#: The same for one that found a disk full on which there was room again: perhaps it is the one that fills the disk.
DISK_FULL_MAX = 20
#: Accusations of an agent in a row before it is held, for how long, and how many are remembered.
FAILURES_IN_A_ROW_MAX = 3
AGENT_HOLD_MS = 300_000
ACCUSATIONS_MAX = 1_000
#: A shared folder with less room than this counts as full.
ROOM_BYTES_MIN = 65_536
#: Files of the inbox that are obeyed, and signals that are read, in one turn.
INBOX_PER_TURN_MAX = 16
SIGNALS_MAX = 1_000
#: How long a signal that names no task is left: its writer may not be done.
SIGNAL_SETTLE_MS = 2_000
#: A result.json, and how much of one rides in the result line.
TASK_RESULT_BYTES_MAX = 2**20
TASK_ANSWER_BYTES_MAX = 4_096
#: Commands that an agent keeps as bash reads them; each has at most 96 KiB.
COMMANDS_PARSED_MAX = 64
#: Batches whose folders an agent keeps in mind.
BATCH_PATHS_KEPT = 64
#: Tasks that an agent claims before a slot is free, while its tasks take no longer than this on average: so many per
#: slot, and in all. One that has not started after this time goes back to the queue.
AHEAD_TASK_MS_MAX = 20
AHEAD_PER_SLOT = 2
AHEAD_MAX = 32
AHEAD_MS_MAX = 250
#: Results of tasks that ended while others run are reported together: at the latest after this time, or so many.
REPORT_GATHER_MS = 5
REPORT_GATHER_MAX = 16
#: The two cycles of an agent: signals, revoked tasks, health; and the heartbeat when nothing has changed.
AGENT_INTERNAL_MS = 5_000
AGENT_EXTERNAL_MS = 30_000
#: An agent whose heartbeat did not reach the shared folder for so long ends its tasks: others take them after 90 s.
AGENT_LEASE_MS = 60_000
#: Polling of the queue where arrivals cannot be heard: with free slots and work at hand, and without work.
AGENT_POLL_BUSY_MS = 1_000
AGENT_POLL_IDLE_MS = 5_000
#: What a process of a task with a limit of memory may allocate, in multiples of that limit. Above 1: stacks of threads
#: and what is reserved ahead count as allocated, and are hardly ever used.
TASK_DATA_FACTOR = 4
#: How long an agent that starts waits for the marker of its shared folder, and how often it looks.
FLEET_WAIT_MS = 60_000
FLEET_LOOK_MS = 500
#: An agent whose disk was full at its start tries again after this.
ROOM_LOOK_MS = 2_000
#: How long a second agent of the same name watches the heartbeat of the first.
AGENT_RIVAL_WATCH_MS = 65_000
#: What running tasks get to end by themselves after SIGTERM.
AGENT_DRAIN_MS = 20_000
#: A guard that does not answer for so long is replaced.
CREW_SILENCE_MS = 45_000
#: What an aborted task gets between TERM and KILL; the coordinator sends `kill` before that.
TASK_ABORT_MS = 180_000
#: How long a coordinator sleeps while tasks are out, and while there is nothing to do.
COORDINATOR_POLL_MS = 1_000
#: While agents have enough to claim, results are gathered for so long before a turn: one sync for all of them.
COORDINATOR_GATHER_MS = 8
COORDINATOR_IDLE_MS = 5_000
#: After an error of the disk: the first wait before a new start, doubled up to the last.
COORDINATOR_AGAIN_MS = (1_000, 30_000)
#: A batch at which so many coordinators of a process fail by a fault of their own is set aside.
COORDINATOR_FAULTS_MAX = 2
#: How often a batch that the coordinator's user may not read or write is looked at again.
LOCKED_AGAIN_MS = 15_000
#: When the summary of a running batch is written first, so that short ones are written once, and then how often.
SUMMARY_FIRST_MS = 2_000
SUMMARY_EVERY_MS = 30_000
#: Tasks that the file of waiting tasks lists.
WAITING_LISTED_MAX = 1_000
#: How long a file that a task produced may stay invisible to the coordinator: on a local disk, and on a network mount,
#: where NFS believes what it knows of a folder for up to 60 s (acdirmax) unless it is mounted otherwise.
PRODUCES_MS_MAX = 5_000
PRODUCES_NETWORK_MS_MAX = 65_000
#: Processor time that counts as a sign of progress of a task, and how many of its files are looked at for another.
HEADWAY_CPU_MS = 1_000
HEADWAY_FILES_MAX = 32
#: How often running tasks are looked at, and how long an abort and a kill may stay without effect.
STUCK_LOOK_MS = 10_000
STUCK_STEP_MS = 120_000
#: How often old tasks and batches are removed.
RETENTION_EVERY_MS = 3_600_000
#: Numbers of coordinators that stay in brain/epochs/. Only the newest one decides.
EPOCHS_KEPT = 100
#: Failed tasks that an escalation describes, and the words of each error.
ESCALATION_TASKS_MAX = 50
ESCALATION_TEXT_CHARS_MAX = 2_000

# ------------------------------------------------------------------ questions to models, and host daemons

#: Tokens and characters of the answer to a plan's task, and how many braces are tried in the search for its object.
ANSWER_TOKENS_MAX = 8_192
ANSWER_CHARS_MAX = 2**20
ANSWER_BRACES_MAX = 1_000
#: How much of the end of an answer people see while it is given.
SO_FAR_CHARS_MAX = 4_096
#: How long an answer waits for its score, how much of it is judged, and how much of the reason is kept.
EVALUATION_MS_MAX = 600_000
EVALUATIONS_MAX = 3
EVALUATED_CHARS_MAX = 32_768
EVALUATION_REASON_CHARS_MAX = 500
#: The largest file that the answer of a task may replace.
OUTPUT_REPLACED_BYTES_MAX = 64 * 2**20
#: How long an agent leaves a slip to others for which its device had no memory: a model may be about to leave it.
LOAN_AGAIN_MS = 5_000
#: How long an agent leaves a slip of class llm to those whose model is in memory.
HEAT_GRACE_MS = 30_000
#: How much longer than its lane an agent waits for the beginning of an answer.
ANSWER_SLACK_MS = 60_000
#: An order to load or unload that an agent has not shown by then is given again.
HEAT_ORDER_MS_MAX = 600_000
#: So is one that failed, after this time.
HEAT_AGAIN_MS = 60_000
#: People are told of tasks that no living agent could run after this time.
STRANDED_MS = 600_000
#: How long an agent waits for its host daemon: to start, to stop, to answer, for a loan, and for a load.
HOST_START_MS_MAX = 60_000
HOST_STOP_MS_MAX = 40_000
HOST_ANSWER_MS_MAX = 10_000
HOST_LOAN_MS_MAX = 45_000
HOST_LOAD_MS_MAX = 600_000
#: How old the last reading of its card may be: its daemon reads once a second.
HOST_READING_MS_MAX = 5_000
#: How often it looks whether that has happened.
HOST_LOOK_MS = 100

# ------------------------------------------------------------------ the door: agents without the shared folder

#: What one message carries at most beside its first line, in bytes; brokers take 1 MB unless they are told otherwise.
DOOR_PART_BYTES = 512 * 1024
#: What a broker has to take at least: a part, the line before it, and room for headers.
DOOR_PAYLOAD_BYTES_MIN = 768 * 1024
#: Agents that one door knows, starts of one agent whose last answer it remembers, and open record files of one.
DOOR_AGENTS_MAX = 1_000
DOOR_SESSIONS_MAX = 4
DOOR_LOGS_MAX = 4
#: Threads that serve agents, and requests that wait for one of them; what comes on top is sent again by its agent.
DOOR_THREADS = 4
DOOR_WAITING_MAX = 1_000
#: Slips of an agent that the door keeps read.
DOOR_SLIPS_MAX = 64
#: How often a door looks whether it is still connected, and how long it gathers news of the queue before it tells them.
DOOR_LOOK_MS = 5_000
DOOR_NEWS_MS = 5
#: An answer of the door that is no older says that it is still there.
DOOR_HEARD_MS = 1_000
#: Files and folders that a task is shown, and the largest file that is carried at all.
MIRROR_FILES_MAX = 20_000
MIRROR_FILE_BYTES_MAX = 64 * 2**30
#: A larger file of a batch comes only to tasks that name it in `requires` or as an input.
MIRROR_UNNAMED_BYTES_MAX = 64 * 2**20
#: How long an agent carries files before it looks at its signals and shows its heartbeat again.
MIRROR_TURN_MS = 2_000
#: Of what a task produces so many files are synced one by one; more are left to a sync of their file system.
PRODUCED_FILES_SYNCED_MAX = 64
#: On a network mount, where such a sync reaches no further than the client, so many are synced one by one.
PRODUCED_FILES_WALKED_MAX = 20_000
#: Batches without a running task whose files an agent keeps.
MIRROR_BATCHES_KEPT = 4
#: Files that were fetched anew and stay open for the tasks that may still write to them.
MIRROR_FORMER_MAX = 256
