"""Every bound of the probes, named, with its unit: how often they look, and how long they may take."""

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
#: A timeline of fake GPUs larger than this is refused.
FAKE_GPUS_BYTES_MAX = 1 * 2**20
