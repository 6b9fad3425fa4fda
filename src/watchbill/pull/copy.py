"""Copy: a model file that is on this machine already, brought into the models folder."""

from pathlib import Path

from watchbill.errors import PullFailed
from watchbill.pull import limits
from watchbill.pull.landing import Landing, Wanted

__all__ = ["fetch", "wanted"]


def wanted(path: Path, sha256: str | None) -> Wanted:
    """The file as it is now: a source that changes later is another source."""
    if not path.is_file():
        raise PullFailed(
            f"{path} is not a file; sources are names as qwen2.5:0.5b, hf:, http(s):, ollama: and paths of files"
        )
    status = path.stat()
    return Wanted(path.name, f"{path} of {status.st_size} bytes at {status.st_mtime_ns}", sha256, path)


def fetch(path: Path, landing: Landing) -> None:
    """Copies the file. Raises PullFailed when there is no room for it."""
    total = path.stat().st_size
    with landing.receive() as part, open(path, "rb") as file:
        part.restart()  # beginning again is simpler than proving that the file did not change
        landing.check_room(total)
        while chunk := file.read(limits.PULL_CHUNK_BYTES):
            part.write(chunk, total)
        part.finish()
