"""A config in the making: tables with their values, and the comments that explain them. Does no I/O."""

from watchbill.toml import KeyPath, spell_key, spell_value

__all__ = ["Draft", "Section"]

_WIDTH = 110
#: Keys without which their table says nothing.
_NEEDED = frozenset({"engine", "command", "driver", "url", "kind"})


class Section:
    """One table: lines in the order in which they were added."""

    def __init__(self, path: KeyPath) -> None:
        self.path = path
        self.lines: list[str] = []
        self.is_left_out = False  # written as comments only

    def say(self, text: str) -> None:
        """Adds a comment."""
        self.lines += [f"# {line}" for line in _wrapped(text)]

    def set(self, key: str, value: object, why: str = "") -> None:
        """Adds a value, with a comment behind it."""
        told = f"{spell_key((key,))} = {spell_value(value)}"
        self.lines.append(f"{told}  # {_one_line(why)}" if why else told)

    def leave_out(self, place: int, why: str) -> None:
        """Turns the value on this line of `text` into a comment: the whole table where it cannot do without it."""
        if place == 0 or self.lines[place - 1].partition(" ")[0] in _NEEDED:
            self.is_left_out = True
            self.say(f"Left out: {why}.")
        else:
            self.lines[place - 1 : place] = [f"# Left out: {_one_line(why)}.", f"# {self.lines[place - 1]}"]

    def text(self) -> list[str]:
        """The lines of the table, with its head."""
        head = f"[{spell_key(self.path)}]"
        if not self.is_left_out:
            return [head, *self.lines]
        return [line if line.startswith("#") else f"# {line}" for line in (head, *self.lines)]


class Draft:
    """A whole file."""

    def __init__(self, origin: str) -> None:
        self._head: list[str] = [f"# Made by: watchbill config import, from {_one_line(origin)}"]
        self._sections: dict[KeyPath, Section] = {}
        self.notes: list[str] = []  # what a person should look at

    def say(self, text: str) -> None:
        """Adds a comment at the top of the file."""
        self._head += [f"# {line}" for line in _wrapped(text)]

    def lack(self, what: str, instead: str) -> None:
        """Notes something without a counterpart, at the top of the file and for the person who imports."""
        self.notes.append(f"{what}: {instead}")
        self.say(f"No counterpart: {what}: {instead}")

    def section(self, *path: str) -> Section:
        """A table, new or as far as it is written."""
        return self._sections.setdefault(path, Section(path))

    def leave_out(self, line: int, why: str) -> bool:
        """Turns the value on this line of `text` into a comment. False where no value of a table stands there."""
        first = len(self._head) + 2  # a blank line follows each block
        for section in self._sections.values():
            size = len(section.text())
            if first <= line < first + size and not section.is_left_out:
                section.leave_out(line - first, why)
                self.notes.append(f"left out: {why}")
                return True
            first += size + 1
        return False

    def text(self) -> str:
        """The file."""
        blocks = [self._head, *(section.text() for section in self._sections.values())]
        return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _wrapped(text: str) -> list[str]:
    lines, line = list[str](), ""
    for word in _one_line(text).split():
        if line and len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]
