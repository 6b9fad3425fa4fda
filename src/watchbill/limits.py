"""The bounds of the modules that are in no folder, and those that several folders share. Each name ends in its unit.

A queue, buffer, body, file, depth, retry or wait without a bound is a bug. A bound is in the `limits.py` of the folder
whose bound it is (`gateway/limits.py`, `fleet/limits.py` ...), with the reason for its figure; a count has no unit.
Figures by which one algorithm decides, such as how long the scheduler remembers a class, stand beside the algorithm.
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
#: How much of a text from outside a message shows.
QUOTED_CHARS_MAX = 100
#: How much of a sentence of another program a message repeats: an error of an engine, or of the operator's own code.
SAID_CHARS_MAX = 200
HEADER_TEXT_CHARS_MAX = 256

# ------------------------------------------------------------------ TOML files, figures and lanes

#: A hundred models with long prompts take some 50 KiB.
CONFIG_FILE_BYTES_MAX = 512 * 2**10
#: Keys of one table, or values of one list: models, lanes, engines. The scheduler takes a changed config over in one
#: step, of some 50 us per model.
CONFIG_TABLE_LEN_MAX = 1_000
#: Keys and values of the whole file, each some 25 us of reading and checking. A thousand models have some 15,000.
CONFIG_VALUES_MAX = 20_000
#: Tables within tables. The deepest of our own keys has six parts.
CONFIG_DEPTH_MAX = 16
#: The number of problems listed for a bad file; the rest is counted.
CONFIG_PROBLEMS_MAX = 100
#: An exbibyte and a hundred days: a larger figure is a typing error.
SIZE_BYTES_MAX = 2**60
DURATION_MS_MAX = 100 * 86_400_000
#: One key of several has at most this part of a lane's queue, 1 / N, unless it has a `waiting_max` of its own.
QUEUE_KEY_SHARES = 2
#: Requests of operators that may wait in a lane beyond its `queue_max`.
QUEUE_OPERATOR_RESERVE = 256

# ------------------------------------------------------------------ records of the root

DAEMON_RECORD_BYTES_MAX = 4096
#: The longest path that Linux takes, and the newline behind it.
CONFIG_PATH_BYTES_MAX = 4097

# ------------------------------------------------------------------ GGUF headers

#: The part of a model file before its weights. The largest vocabularies in use need some 20 MB.
GGUF_HEADER_BYTES_MAX = 256 * 2**20
GGUF_KEYS_MAX = 4_096
GGUF_TENSORS_MAX = 65_536
GGUF_KEY_BYTES_MAX = 65_535
#: A text that is kept (name, architecture); longer ones except the chat template are skipped, not refused.
GGUF_TEXT_BYTES_MAX = 4_096
#: Numbers of an array that is kept, as heads per layer; longer ones are skipped.
GGUF_NUMBERS_MAX = 4_096
GGUF_ARRAY_LEN_MAX = 16 * 2**20
GGUF_DIMENSIONS_MAX = 4
#: The largest models have some 130. A damaged figure must not become a list of billions.
GGUF_LAYERS_MAX = 4_096
GGUF_ALIGNMENT_BYTES_MAX = 1 * 2**20
GGUF_SHARDS_MAX = 256

# ------------------------------------------------------------------ journal

#: Lines that wait for the disk. Beyond it the oldest are dropped and counted: a decision never waits.
JOURNAL_BUFFER_LINES_MAX = 10_000
JOURNAL_FILE_BYTES_MAX = 64 * 2**20
#: Rotated files kept beside the current one: NAME.1 is the newest.
JOURNAL_FILES_KEPT = 4
JOURNAL_SYNC_MS = 1_000
JOURNAL_TEXT_CHARS_MAX = 500
JOURNAL_SUBSCRIBERS_MAX = 64
JOURNAL_SUBSCRIBER_LINES_MAX = 1_000
#: How long the daemon waits at shutdown for the last lines to reach the disk.
JOURNAL_CLOSE_MS = 2_000

# ------------------------------------------------------------------ learned figures of models

SIZES_MODELS_MAX = 512
#: Measurements kept per model and kind; load times use the last nine of them.
SIZES_SAMPLES_MAX = 32
SIZES_LOADS_USED = 9
SIZES_FILE_BYTES_MAX = 16 * 2**20

# ------------------------------------------------------------------ JSON

#: How long a view of everything (status, metrics, requests, lists of models) is worked on in one turn.
LOOP_SHARE_MS = 5
#: Descriptors that are kept for engines, files and logs; the rest is for connections of clients.
DESCRIPTORS_KEPT = 256
#: Nested brackets in a request.
JSON_DEPTH_MAX = 128
#: A body up to this size is decoded at once, which takes some milliseconds at the worst; a larger one in windows.
JSON_AT_ONCE_BYTES_MAX = 128 * 2**10
JSON_WINDOW_BYTES = 32 * 2**10
#: Texts from this size on are taken out of a large body. The rest is decoded at once: its bytes, values, fields and the
#: digits of a number are bounded so that this takes less than 50 ms.
JSON_LIFTED_BYTES_MIN = 512
JSON_LIFTED_MAX = 4_096
JSON_FRAME_BYTES_MAX = 4 * 2**20
JSON_VALUES_MAX = 100_000
JSON_FIELDS_MAX = 20_000
JSON_DIGITS_MAX = 32
#: Hard numbers count as further values there: an exponent, and every run of so many digits. One takes up to 2 us.
JSON_EXPONENT_VALUES = 9
JSON_VALUE_DIGITS = 9
#: An engine's event, or an answer that is translated, is decoded and encoded at once up to this size and this number of
#: values. 4 MiB of escaped letters took 135 ms, an object of 100,000 fields 170 ms.
JSON_DECODED_BYTES_MAX = 512 * 2**10
JSON_DECODED_VALUES_MAX = 10_000
#: A body from this size on is searched for more digits than that before it is decoded: time grows with their square.
JSON_DIGITS_BYTES_MIN = 4 * 2**10
#: How long a large body waits until earlier ones are read; one is read at a time.
JSON_TURN_MS = 30_000

# ------------------------------------------------------------------ the daemon

#: One line of status for the init system.
NOTIFY_TEXT_CHARS_MAX = 200
#: How often the daemon checks whether its config file changed.
CONFIG_LOOK_MS = 2_000

# ------------------------------------------------------------------ the config, where others read it too

#: Drain workers of one spool; they share one disk.
DRAIN_WORKERS_MAX = 64
AGENT_NAME_CHARS_MAX = 40
#: Tasks that one agent runs at the same time.
AGENT_SLOTS_MAX = 512
#: A task without a sign of progress for this long counts as stuck, unless the config says another time.
STUCK_AFTER_MS = 20 * 60_000
#: Tasks of plans that the coordinator's own agent runs at the same time.
BRAIN_SLOTS = 2

# ------------------------------------------------------------------ templates

#: A prompt template, and a value that is put into it.
TEMPLATE_CHARS_MAX = 64 * 2**10
TEMPLATE_VALUE_CHARS_MAX = 256 * 2**10

# ------------------------------------------------------------------ suggestions

#: Comparing a word with a known one takes some 20 us; a plan may have 100,000 task names.
SUGGEST_WORDS_MAX = 2_000
SUGGEST_CHARS_MAX = 100
#: A known word that begins like a word of at least this length is meant by it.
SUGGEST_BEGUN_CHARS_MIN = 3
#: How many known words are listed where none is near.
SUGGEST_LISTED_MAX = 60

# ------------------------------------------------------------------ traces

#: Requests whose spans wait for the collector, and how many of them one message has.
SPANS_WAITING_MAX = 4_096
SPANS_SENT_MAX = 256
#: Spans are sent this often; a collector that is away is asked again after this long at the latest.
SPANS_FLUSH_MS = 1_000
SPANS_SILENT_MS = 30_000
#: How long the collector may be silent, and how long the last spans of a daemon may take.
SPANS_TIMEOUT_MS = 10_000
SPANS_CLOSE_MS = 2_000
