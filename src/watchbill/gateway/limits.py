"""Every bound of the gateway, named, with its unit: what clients may send, and how long, and what is held of it."""

# ------------------------------------------------------------------ connections, bodies and streams

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
#: How long the rest of an unread body is awaited, so that the client sees the answer before a reset.
LINGER_MS = 1_000
#: What an answer of embeddings has beside its vectors: 40,000 of them at the most.
VECTORS_OUTLINE_BYTES_MAX = 4 * 2**20
#: The body of typed work, and of an operator's call.
PLAIN_BODY_BYTES_MAX = 2**20
#: The most that a prompt counts against a key's tokens where neither its engine nor the config knows a bound.
PROMPT_TOKENS_FORETOLD_MAX = 32_768
#: Tokens that an answer is expected to have at most, where its request does not say.
ANSWER_TOKENS_FORETOLD = 1_024
#: Answers to one request (`n`).
CHOICES_MAX = 32
#: Runs of an engine for one answer: prompts, times the runs that their choices take.
COMPLETION_RUNS_MAX = 256
#: Unknown model, bad input, a full lane are known at once; then headers are held back this long.
HEADERS_HELD_MS = 10_000
#: The same for a request of another machine: only a sign of life tells it that the request waits here.
HEADERS_HELD_LEASED_MS = 500
#: Keep-alive comments in a stream that waits.
KEEP_ALIVE_COMMENT_MS = 12_000
#: The longest Retry-After: of a forecast, which may turn out shorter, and of a tier that is closed until midnight.
RETRY_AFTER_S_MAX = 60
CLOSED_S_MAX = 86_400
#: Another machine that takes a request and hangs up without a byte, or the tunnel before it, is asked again so many
#: times, after pauses that double from the first one.
UNHEARD_TIMES_MAX = 6
UNHEARD_PAUSE_MS = 200
#: A stream of a peer begins within 10 s, and says every 12 s that its request waits: one that is silent is away.
PEER_FIRST_SIGN_MS = 60_000
#: One that shuts down is asked again after this, until it is gone: its own bound for running answers is 30 s.
CLOSING_PAUSE_MS = 500
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
#: The page: how often those who watch are told what changed, also where a message is longer than the bytes of a calm
#: one (a browser has work with it, and a second is the bound), unless making a picture takes more than this share of a
#: core; how many requests and lines of the journal a picture has; how far a reader may fall behind before it
#: gets a whole picture again.
LIVE_EVERY_MS = 500
LIVE_BUSY_EVERY_MS = 800
LIVE_CALM_BYTES = 16 * 1024
LIVE_SHARE_MAX = 0.03
LIVE_REQUESTS_MAX = 100
LIVE_LINES_MAX = 100
LIVE_MESSAGES_WAITING_MAX = 16
#: The end of an engine's log, as it is shown over HTTP.
LOG_SHOWN_LINES_MAX = 500
#: llama-swap's /logs: the end of each log, how often files are looked at for new lines, how much is read at one look,
#: and from which length on a line is told before its end is written.
LOG_HISTORY_BYTES_MAX = 10 * 2**10
LOG_FOLLOW_INTERVAL_MS = 500
LOG_FOLLOWED_PIECE_BYTES_MAX = 256 * 2**10
LOG_FOLLOWED_LINE_BYTES_MAX = 16 * 2**10
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

# ------------------------------------------------------------------ websockets, and answers that are put together

#: A websocket: the engine's consent, one piece of it, and what is held of a client whose engine is slow.
WEBSOCKET_HANDSHAKE_MS = 10_000
WEBSOCKET_PIECE_BYTES = 16 * 2**10
WEBSOCKET_BUFFER_BYTES_MAX = 256 * 2**10
#: How long the end of a frame is waited for, before a websocket is closed.
WEBSOCKET_CLOSE_MS = 1_000
#: The part of a stream that is buffered to be read at once, for a caller that wants a whole answer: some dozen events.
ASSEMBLY_HELD_BYTES = 16 * 2**10
#: The weight of what is kept of an answer that is put together from a stream, and of its tool calls, which are decoded
#: at their end; a character and any other value weigh so much. A million control characters, and 250,000 values, are
#: encoded in 25 ms.
GROWN_WEIGHT_MAX = 4 * 2**20
GROWN_CALLS_WEIGHT_MAX = 2 * 2**20
GROWN_CHARACTER_WEIGHT = 4
GROWN_VALUE_WEIGHT = 16

# ------------------------------------------------------------------ dialects, forms and claims

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
#: A pull whose file lies in the models folder waits this long until it is served, and looks this often.
FILE_SERVED_MS = 15_000
FILE_LOOK_MS = 500
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
#: A claim without a holder ends by itself after this many hours, or those it asks for, and never later than this.
CLAIM_HOURS = 8
CLAIM_HOURS_MAX = 168
#: Further addresses of the gateway, one for each agent of the machine.
DOORS_MAX = 64
#: Companions that one request may have.
COMPANIONS_MAX = 8
#: Daemons that a request may have come through; the last ones count.
PASSED_MAX = 16
#: A form of an audio request has about ten parts.
FORM_PARTS_MAX = 64
#: The headers of one part, what its Content-Disposition says, and a text that is looked at. Behind the last boundary
#: there is hardly anything.
FORM_HEAD_BYTES_MAX = 4_096
FORM_HEAD_LINES_MAX = 32
FORM_PARAMETERS_MAX = 16
FORM_END_BYTES_MAX = 1_024
FORM_TEXT_BYTES_MAX = 65_536

# ------------------------------------------------------------------ Ollama's dialect

#: An uploaded model file. As long as it takes over a slow line.
BLOB_BYTES_MAX = 2**41
BLOB_RECEIPT_MS = 6 * 3_600_000
#: Lines of progress of one pull per second: clients draw a bar with them.
PULL_LINES_PER_S = 5
#: Pulls at once that callers asked for; each has a thread.
PULLS_MAX = 4
#: What an Ollama behind us says of its models is asked again after this long, and waited for so long.
OLLAMA_LISTED_MS = 3_000
OLLAMA_LIST_MS = 2_000
#: A conversation that /api/generate hands back as `context`; of a longer one the oldest turns are left out.
CONTEXT_TEXT_BYTES_MAX = 192 * 2**10
#: How often a chat, or a text to embed, that is too long is shortened and asked again.
SHORTENINGS_MAX = 6

# ------------------------------------------------------------------ files and batches

#: How much of a file is sent to a client at a time.
FILE_PIECE_BYTES = 256 * 2**10
FILE_NAME_CHARS_MAX = 255
#: A page of a list of files or batches.
BATCH_LIST_MAX = 10_000
#: The shortest time that a file may be kept when its uploader says how long.
FILE_KEPT_MS_MIN = 3_600_000
#: The shortest completion window.
BATCH_WINDOW_MS_MIN = 60_000
