"""Every bound of the config, named, with its unit: the largest figures that it may give. Bounds of any TOML file are in
`watchbill.limits`."""

#: How long a check of the file may take. A disk that wakes up takes some seconds; a hanging mount never answers.
CONFIG_READ_MS = 10_000
#: The largest figures that a config may give.
CONCURRENCY_MAX = 1024
CONTEXT_TOKENS_MAX = 2**24
THREADS_MAX = 1024
QUEUE_LEN_MAX = 1_000_000
PARALLEL_LOADS_MAX = 64
BODY_BYTES_MAX = 2**30
CONNECTIONS_MAX = 65_536
SPOOL_ATTEMPTS_MAX = 1_000
#: A size without a unit that is smaller was meant in another unit: 12 is 12 GB.
BARE_SIZE_BYTES_MIN = 1024
#: The highest port there is.
PORT_MAX = 65_535
#: The largest figures that `[batches]` may give.
BATCH_FILE_BYTES_MAX = 16 * 2**30
BATCH_FILES_MAX = 100_000
BATCH_LINES_MAX = 1_000_000
BATCHES_OPEN_MAX = 256
BATCH_ATTEMPTS_MAX = 100
#: Macros of another program's config within macros, a text with all of them filled in, and the combinations of one
#: set of a matrix.
MACRO_ROUNDS_MAX = 32
MACRO_TEXT_CHARS_MAX = 64 * 2**10
MATRIX_SETS_MAX = 4_096
