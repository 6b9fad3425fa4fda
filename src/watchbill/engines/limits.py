"""Every bound of the engines, named, with its unit: loads, health, connections to them and what they answer."""

# ------------------------------------------------------------------ loads and health

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
#: An engine is asked once what it computes on; a first contact with a card's driver takes seconds.
ENGINE_DEVICES_S_MAX = 20.0
ENGINE_DEVICES_TICK_S = 0.05

# ------------------------------------------------------------------ connections

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
#: Bytes received and not yet read; beyond it the socket is not read, so that the engine waits.
UPSTREAM_BUFFER_BYTES_MAX = 256 * 2**10
#: How much of an engine's answer is parsed, and how much is given out, in one turn of the event loop. Translating so
#: much of an answer in tiny events took 40 ms at the worst, on a busy core.
UPSTREAM_TURN_BYTES = 8 * 2**10
#: An answer that is read whole (embeddings, assembled chats).
UPSTREAM_ANSWER_BYTES_MAX = 64 * 2**20
#: The part of an engine's error that is read.
ERROR_BYTES_MAX = 64 * 2**10
#: One event of a stream that is passed on as it is: a token with its log probabilities is some KiB, an image in base64
#: some MiB. One that is decoded has the bounds of JSON_DECODED.
SSE_EVENT_BYTES_MAX = 4 * 2**20
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
#: What a daemon writes down for the next one: the names of the models that we hold in another program.
RUN_FILE_BYTES_MAX = 256 * 2**10
#: A unit's health is checked this often while it is warm.
UNIT_LOOK_MS = 3_000

# ------------------------------------------------------------------ leases at other machines, and bursts

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
#: A machine that no model needs and that could not be stopped is stopped again after this.
BURST_STOP_AGAIN_MS = 30_000
#: So long a machine may still come up whose start was under way when its daemon was killed: as long as a start may
#: take where the config says nothing.
BURST_STRAY_MS = 600_000
