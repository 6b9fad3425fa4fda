"""Every bound of the file mechanisms, named, with its unit. Bounds that depend on the caller are parameters."""

#: Newlines written ahead in a log, in bytes: few at first, because many writers append only one record.
LOG_FILL_BYTES = (64 * 1024, 1024 * 1024, 4 * 1024 * 1024)
#: A group of records at least this large extends the log by itself, in bytes.
LOG_DIRECT_BYTES_MIN = 64 * 1024
#: One line of a checked log, in bytes, without checksum and newline.
LINE_BYTES_MAX = 16 * 1024 * 1024
#: What a reader of a checked log takes first, in bytes: most looks find a few new lines, or none, before newlines that
#: are filled ahead.
LINES_LOOK_BYTES = 16 * 1024
#: How much of a checked log one read takes at least where there is so much, in bytes; a longer line is read whole.
LINES_READ_BYTES = 1024 * 1024

#: Folders that one watch listens to besides its main one.
WATCHED_FOLDERS_MAX = 64
#: A new folder that is not locked within this many seconds was left by a crash.
NEWBORN_AGE_S = 60.0

#: Bytes written to find out whether a disk still accepts any.
DISK_TRY_BYTES = 64 * 1024
