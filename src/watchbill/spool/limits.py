"""Every bound of the spool, named, with its unit. Nothing here is read from outside."""

#: One event, in bytes, without its newline. A larger file goes to poison unread.
EVENT_BYTES_MAX = 16 * 1024 * 1024
#: One bundle file, in bytes.
BUNDLE_BYTES_MAX = 64 * 1024 * 1024
#: Lines of one bundle.
BUNDLE_LINES_MAX = 100_000
#: Nesting of an event. Below the interpreter's recursion limit, whatever the depth of the caller.
DEPTH_MAX = 256
#: The signature beside an event, in bytes.
SIGNATURE_BYTES_MAX = 4_096
#: Attempts of one event before it is poisoned.
ATTEMPTS = 3

#: Files that lie directly in queue/, where a plain `ls` shows them, before a writer begins to use buckets.
#: With half as many it stops.
FLAT_FILES_MAX = 8_192
#: Files that a writer makes between two counts of the waiting ones.
FLAT_LOOK_EVERY = 1_024
#: Files in one bucket.
BUCKET_FILES_MAX = 4_096
#: Folders below queue/ are searched this deep; deeper ones are not ours.
FOLDER_DEPTH_MAX = 4
#: A batch at least this large becomes a folder of its own, shown by one rename, once buckets are in use.
FOLDER_BATCH_MIN = 24

#: A writer's log is cut (checkpoint) when it holds this much ...
LOG_BYTES_MAX = 64 * 1024 * 1024
#: ... or when its first record is this old, in seconds.
LOG_AGE_MAX_S = 30.0
#: How long a writer that closes waits for the threads that are still in it.
CLOSE_WAIT_S = 30.0
#: A bundle at least this large is written and synced once, as a file, and not to the log as well.
DIRECT_BYTES_MIN = 32 * 1024
#: Bytes of one group commit.
GROUP_BYTES_MAX = 8 * 1024 * 1024
#: Records that a checkpoint syncs file by file; with more it syncs the whole file system once.
CHECKPOINT_FILES_MAX = 64
#: Acknowledged events that could not be made visible yet (disk full) and are kept in memory for a retry.
UNSEEN_MAX = 100_000

#: A listing of queue/ is thrown away after this many seconds even if it still holds names.
RESCAN_S = 3.0
#: How long a starting consumer waits for another process's replay, in seconds.
REPLAY_WAIT_S = 30.0
#: Dead writers' logs that are open at once: each takes a descriptor.
REPLAY_LOGS_MAX = 256
#: Names that one scan of the folders looks for.
REPLAY_NAMES_MAX = 1_000_000
#: A file leased by a program that holds no lock is taken back this many seconds after it was leased or touched.
FOREIGN_LEASE_S = 600.0
#: How long an event is leased to a shell worker that gives no duration, in seconds.
SHELL_LEASE_S = 600.0
#: Files and folders that a process notes as barred.
BARRED_MAX = 1_000
#: Foreign names longer than this many bytes are replaced by a hash of themselves.
FOREIGN_NAME_BYTES_MAX = 160

#: Events that a drain leases, appends and acknowledges together.
DRAIN_BATCH = 512
#: Bytes of one such batch: a batch of the largest events must not fill the memory.
DRAIN_BATCH_BYTES_MAX = 32 * 1024 * 1024
#: Events that a move between two spools carries at a time.
MOVE_BATCH = 128
#: How often a move looks again for events that workers hold, in seconds.
MOVE_LOOK_S = 0.5
#: How long `spool move` waits for another move of the same folder, in seconds.
MOVE_TURN_S = 10.0
#: Seconds between two looks of an idle drain.
POLL_S = 1.0
#: Back-off between two attempts: first and last step, in seconds.
BACKOFF_FIRST_S = 0.5
BACKOFF_LAST_S = 60.0
#: Stems that one process remembers as resting; the oldest is forgotten first.
RESTING_MAX = 100_000

#: Ids that an appender remembers; the oldest is forgotten first.
IDS_MAX = 1_000_000
#: Days of id files that an appender reads at start.
IDS_DAYS = 2
#: Files of keys and of JSON Schemas.
KEY_BYTES_MAX = 64 * 1024
SCHEMA_BYTES_MAX = 16 * 1024 * 1024
#: Corpora that are noted in a spool, and the bytes of that note.
CORPORA_NOTED_MAX = 16
CORPORA_BYTES_MAX = 128 * 1024
#: Bytes at the end of a corpus that are read for ids when there is no id file.
IDS_TAIL_BYTES_MAX = 64 * 1024 * 1024

#: Days that done files are kept, in seconds.
KEEP_DONE_S = 7 * 86_400.0

#: Files of one commit that its event names; `files_total` says how many there were.
HOOK_FILES_MAX = 1_000
#: Commits that the hook's background job requests from git at once.
HOOK_BATCH = 200
#: Notes of commits, in bytes, before new ones are begun.
HOOK_NOTES_BYTES_MAX = 256 * 1024
#: How long one background job waits for another one, in seconds.
HOOK_TURN_WAIT_S = 300.0

#: How long one operation on a broker may take, in seconds: a cluster needs up to ten to elect a leader.
BROKER_WAIT_S = 20.0
#: How long one request waits for its answer before it is sent again, and the pause between two, in seconds.
BROKER_REPLY_S = 3.0
BROKER_AGAIN_S = 0.2
#: How long one server may take to accept a connection, in seconds.
BROKER_CONNECT_S = 2.0
#: Two pings without an answer end a connection, in seconds between them.
BROKER_PING_S = 4.0
#: Requests to a broker that wait for their answers at a time. So many syncs of a slow disk end within BROKER_REPLY_S or
#: soon after it: of more, all would be sent again before the first ones are answered.
BROKER_WINDOW = 64
#: A lease on a broker ends this many seconds after its last renewal; it is renewed three times as often.
BROKER_LEASE_S = 30.0
#: The share of a lease after which it is renewed.
BROKER_BEATS = 3
#: Events that are leased or rest between attempts on one broker; further ones wait.
BROKER_PENDING_MAX = 100_000
#: Two sends of the same event within this many seconds are one, by the broker's own memory.
BROKER_TWICE_S = 120.0
#: Counts of failed attempts, and records of leases, are forgotten after this many seconds without a change.
BROKER_NOTES_S = 7 * 86_400.0
#: Messages that one look at a stream reads at a time, and their bytes.
BROKER_PAGE = 256
BROKER_PAGE_BYTES = 16 * 1024 * 1024
