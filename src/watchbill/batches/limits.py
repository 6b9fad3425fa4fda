"""Every bound of files and batches, named, with its unit."""

#: Uploads that are received at the same time, and how long one may take in all.
UPLOADS_MAX = 32
UPLOAD_RECEIPT_MS = 3_600_000
#: How much of an upload is collected for one write.
UPLOAD_WRITE_BYTES = 2**20
#: What is known of a file or of a batch that has ended, as JSON.
BATCH_RECORD_BYTES_MAX = 2**20
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
#: How often lines are started without news of an answer, a batch or room.
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
