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
#: The same on a mount that several hosts share: their clocks differ, by minutes or by hours.
NEWBORN_AGE_SHARED_S = 86_400.0
#: An owner on a shared mount says this often, in seconds, that it lives.
BEAT_EVERY_S = 10.0
#: An owner on another host is given up after this many seconds of silence. A mount may show a beat a minute late.
SILENCE_S_MAX = 90.0
#: A writer's half-written files are removed after this many seconds of silence: longer than any mount caches a name.
WRITER_SILENCE_S_MAX = 600.0
#: Of the time between two looks at most this much counts as silence, in seconds.
LOOK_GAP_S_MAX = 15.0
#: Owners on other hosts that a process remembers; the oldest is forgotten first.
WITNESSED_MAX = 10_000

#: Bytes written to find out whether a disk still accepts any.
DISK_TRY_BYTES = 64 * 1024
