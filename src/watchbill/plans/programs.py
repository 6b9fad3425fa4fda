"""Programs: what is known about each by its name, in one table. Data and questions about it; nothing is run.

A record says how a program turns text into something that runs, and which hosts it reaches:

    kind      a shell or an interpreter: its first operand is a script
    code      the words of its command line that it runs as program text: `python -c`, `tar --to-command`, `deno eval`
    again     all of its arguments are read a second time: `eval`, `ssh`, `xargs`
    input     when it takes commands from its input: `bash`, `make -f -`, `sqlite3`
    wraps     it starts the program that its own words name: `env`, `timeout`, `find -exec`
    hides     it starts programs in ways that its words do not tell: `make`, `tmux`
    doubtful  words that are harmless in most forms and start a program in some: `sed s/a/b/e`
    reach     how it names the hosts that it connects to: `curl`, `git clone`

`second_reading` and `fed_input` refuse values of items that would be run; `fleet.permissions` takes command lines apart
by it. A program that is missing here is an ordinary one, which is given words and does nothing with them that we know.
Errs on the safe side: options of the same letters in other programs of that name are treated alike.
"""

import re
from collections.abc import Container, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

__all__ = [
    "INPUT", "PROGRAMS", "Again", "Code", "Hides", "Input", "Kind", "Program", "Reach", "Text", "Wraps", "code_in",
    "code_in_text", "is_long", "program_named", "unversioned",
]  # fmt: skip

#: Files that are the input of the program itself.
INPUT = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})


class Kind(Enum):
    """How a program treats its first operand."""

    ORDINARY = "ordinary"
    SHELL = "shell"
    PYTHON = "python"
    INTERPRETER = "interpreter"


class Code(NamedTuple):
    """The words of a command line that are program text."""

    letters: str = ""  # short options, alone or in a cluster: the program stands behind them
    long: tuple[str, ...] = ()  # long options, also cut short
    hint: str = "give the value as an argument behind the program text"
    also: str = ""  # short options with text that runs beside the program
    also_long: tuple[str, ...] = ()
    words: re.Pattern[str] | None = None  # whole words; where they have no `=`, the next one belongs to them
    verbs: tuple[str, ...] = ()  # all words behind one of these
    operands: int | None = None  # operands from this one on
    valued: tuple[str, ...] = ()  # options that are followed by a value of their own
    ends: bool = True  # its first operand ends the options
    is_dashless: bool = False  # its first word is a cluster, also without a dash


class Text(NamedTuple):
    """A program whose first operand is program text, unless an option brings it."""

    hint: str
    why: str
    valued: str = ""  # short options with a value
    files: str = "f"  # the program is in a file
    scripts: str = ""  # program text behind them
    long: tuple[str, ...] = ()  # program text
    long_files: tuple[str, ...] = ("--file",)


class Again(NamedTuple):
    """All arguments are read a second time."""

    hint: str
    reads_variables: bool = False  # so that an expansion among them counts, too


class Input(NamedTuple):
    """When a program takes commands from its input."""

    unless: tuple[str, ...] | None = None  # not with these; None: only by what follows
    files: tuple[str, ...] = ()  # options that name a file of commands, which may be the input
    asks: tuple[str, ...] = ()  # first words that start a shell


class Wraps(NamedTuple):
    """How a program that starts another one is written."""

    flags: str = ""  # short options without a value
    valued: str = ""  # short options with one
    words: int = 0  # words of its own before the program
    long: tuple[str, ...] = ()  # long options without a value, or with one behind =
    is_harmless: bool = True
    takes_assignments: bool = False
    behind: tuple[str, ...] = ()  # the program stands behind one of these words
    is_followed: bool = True  # else its options are not known well enough to find the program


class Hides(Enum):
    """What a program starts beside that which its words name."""

    NOTHING = "nothing"
    PROGRAMS = "programs"
    TEXT = "text"  # text that it is given


class Reach(NamedTuple):
    """How a program that uses the network names its hosts."""

    operands: int = 0  # how many of its first operands are hosts; 0: none, its addresses tell
    valued: str = ""  # short options that take a value
    long_valued: tuple[str, ...] = ()  # long options that take a value
    verbs: tuple[str, ...] = ()  # it uses the network with these first operands alone; none: always
    is_local_too: bool = False  # it uses the network only where a word names another host


class Program(NamedTuple):
    """What is known about one program."""

    kind: Kind = Kind.ORDINARY
    code: Code | None = None
    text: Text | None = None
    again: Again | None = None
    input: Input | None = None
    wraps: Wraps | None = None
    hides: Hides = Hides.NOTHING
    doubtful: re.Pattern[str] | None = None
    reach: Reach | None = None
    verbs: tuple[str, ...] = ()  # that may stand before the script of an interpreter
    prints_files: bool = False  # it prints what is in files, not its words

    @property
    def is_interpreter(self) -> bool:
        """Whether its first operand is a script, and its input one where it has no operand."""
        return self.kind is not Kind.ORDINARY


# ------------------------------------------------------------------ the table

_IN_SCRIPT = "put the command into a script and give it the value"
_IN_ENVIRONMENT = "export value={PLACE} and read it there from the environment"
_NAME_IT = "name the program yourself"
_NAME_VARIABLE = "name the variable yourself"

_SHELL_VALUED = ("-o", "-O", "+o", "+O", "--rcfile", "--init-file")
_SHELL = Program(
    Kind.SHELL,
    Code("c", ("--command",), "write {SHELL} -c '... \"$1\" ...' _ {PLACE}", valued=_SHELL_VALUED),
)
_PYTHON_VALUED = ("-W", "-X", "-Q")
_PYTHON = Program(
    Kind.PYTHON,
    Code("c", (), "write {SHELL} -c 'import sys; ... sys.argv[1] ...' {PLACE}", valued=_PYTHON_VALUED),
)


def _interpreter(code: Code, verbs: tuple[str, ...] = ()) -> Program:
    return Program(Kind.INTERPRETER, code, verbs=verbs)


def _evaluates(
    letters: str, *long: str, also: str = "", also_long: tuple[str, ...] = (), valued: str = "IWXC"
) -> Program:
    options = tuple(f"-{letter}" for letter in valued)
    return _interpreter(Code(letters, long, also=also, also_long=also_long, valued=options))


_EDITOR = Program(
    code=Code(
        "cS",
        ("--cmd", "--remote-send", "--remote-expr"),
        _IN_SCRIPT,
        words=re.compile(r"\+.*", re.DOTALL),
        ends=False,
    ),
    hides=Hides.TEXT,
)
_UNFOLLOWED = Program(wraps=Wraps(is_harmless=False, is_followed=False))
_LOGIN = Program(
    code=Code(
        "c",
        ("--command", "--session-command"),
        'export value={PLACE}; su -m ... and use "$value" there',
        valued=("-s", "-g", "-G", "-u", "--shell", "--user", "--group"),
        ends=False,
    ),
    input=Input(("-c", "--command")),
    wraps=Wraps(is_harmless=False, is_followed=False),
    hides=Hides.TEXT,
)
_AWK = Program(
    text=Text(
        "write {SHELL} -v name={PLACE} and use name in the program", "is program text of {SHELL}",
        "vF", "fE", "e", ("--source",), ("--file", "--exec"),
    ),
    input=Input(files=("-f", "--file", "-E", "--exec")),
    doubtful=re.compile(r"system|getline|\||@load|-\w*[filE]|--(?:file|load|include|exec)"),
)  # fmt: skip
_SED = Program(
    text=Text(
        "do it in a script that gets {PLACE} as an argument", "is program text of sed, which can run commands",
        "l", "f", "e", ("--expression",),
    ),
    input=Input(files=("-f", "--file")),
    doubtful=re.compile(
        r"\A(?s:.*(?:^|[;{}\s\d$/])e(?:\s.*|$)|.*/[gpiIm\d]*e[gpiIm\d]*(?:[;}\s].*)?$|-\w*f.*|--file.*)\Z"
    ),
)  # fmt: skip
_TAR = Program(
    code=Code(
        "IF",
        ("--to-command", "--checkpoint-action", "--use-compress-program", "--rsh-command", "--rmt-command",
         "--info-script", "--new-volume-script"),
        _NAME_IT, ends=False, is_dashless=True,
    ),
    prints_files=True,
)  # fmt: skip
_MAKE = Program(
    code=Code(
        "", ("--eval",), 'export value={PLACE} and write "$$value" in the recipe',
        words=re.compile(r"-E|[A-Za-z_.][\w.-]*\s*[+?:!]{0,3}=.*", re.DOTALL), ends=False,
    ),
    input=Input(files=("-f", "--file", "--makefile")),
    hides=Hides.PROGRAMS,
)  # fmt: skip
_GIT = Program(
    code=Code(
        "c", ("--exec-path", "--config-env"), _NAME_IT, valued=("-C", "--git-dir", "--work-tree", "--namespace"),
        verbs=("foreach", "bisect", "filter-branch"),
        words=re.compile(
            r"--(?:upload-pack|receive-pack|exec|extcmd|open-files-in-pager|exec-path|config-env|[a-z]+-filter)(?:=.*)?"
            r"|(?:--config=)?[a-z]+\.[^=]*=.*|alias\..*|credential\.helper|[a-z.]+\.(?:cmd|command|driver|program|textconv)"
            r"|core\.(?:pager|editor|sshcommand|fsmonitor|askpass|gitproxy|hookspath)|ext::.*|!.*|.*=!.*",
            re.DOTALL | re.IGNORECASE,
        ),
    ),
    reach=Reach(verbs=("clone", "fetch", "pull", "push", "ls-remote", "submodule", "remote", "archive", "lfs")),
)  # fmt: skip
_SSH_VALUED = "BbcDEeFIiJLlmOoPpQRSWw"
_ALL = 1_000
_CURL = Reach(
    _ALL, "odHXAbceFmuwxTKCErtyYzDUPQ",
    ("--output", "--data", "--data-raw", "--data-binary", "--data-urlencode", "--header", "--request", "--user-agent",
     "--user", "--max-time", "--connect-timeout", "--retry", "--retry-delay", "--referer", "--cookie", "--cookie-jar",
     "--form", "--write-out", "--cacert", "--cert", "--key", "--range", "--limit-rate", "--output-dir", "--json"),
)  # fmt: skip
_WGET = Reach(
    _ALL, "oOaieBtTwQPAURDIXl",
    ("--output-document", "--output-file", "--tries", "--timeout", "--wait", "--directory-prefix", "--header",
     "--user-agent", "--post-data", "--limit-rate", "--level", "--accept", "--reject"),
)  # fmt: skip
_SFTP_WORDS = re.compile(r"-[SoDbF].*", re.DOTALL)
_FIRST, _ANYWHERE = Reach(1), Reach()
_SQL = Code(
    words=re.compile(r"-c.*|-e.*|--?(?:cmd|command|execute|eval|query)(?:=.*)?", re.DOTALL),
    hint="put the statements into a file, and give the value as a parameter or a variable of the session", ends=False,
)  # fmt: skip
_SQL_SHELL = _SQL._replace(operands=1)  # the first one is the database; sqlite3 also has .shell


def _named(names: str, program: Program) -> dict[str, Program]:
    return dict.fromkeys(names.split(), program)


def _takes_commands(*unless: str, code: Code | None = None, hides: Hides = Hides.NOTHING) -> Program:
    return Program(code=code, input=Input(unless), hides=hides)


def _reaches(reach: Reach) -> Program:
    return Program(reach=reach)


def _again(hint: str, *, reads_variables: bool = False) -> Program:
    return Program(again=Again(hint, reads_variables))


def _runs(letters: str = "", *long: str, words: str = "") -> Program:
    """An ordinary program that starts another one with some options."""
    pattern = re.compile(words, re.DOTALL) if words else None
    return Program(code=Code(letters, long, _NAME_IT, words=pattern, ends=False))


PROGRAMS: dict[str, Program] = {
    # shells and interpreters
    **_named("bash sh dash ash zsh ksh mksh rbash fish csh tcsh", _SHELL),
    **_named("python pypy ipython", _PYTHON),
    "perl": _evaluates("eE", also="Mm"),
    **_named("ruby jruby", _evaluates("e", also="r")),
    **_named("node nodejs", _evaluates("ep", "--eval", "--print", also="r",
                                       also_long=("--require", "--import", "--loader", "--experimental-loader"))),
    "bun": _interpreter(Code("ep", ("--eval", "--print"), also="r", also_long=("--require", "--preload")),
                        ("run", "x")),
    "deno": _interpreter(Code("", ("--eval",), verbs=("eval",), also_long=("--eval-file",)), ("run", "repl", "serve")),
    "php": _evaluates("rR", "--run", "--process-code", also="BE",
                      also_long=("--process-begin", "--process-end"), valued="dcfzSt"),
    **_named("lua luajit texlua", _evaluates("e", also="l")),
    "Rscript": _evaluates("e"),
    "julia": _evaluates("eE", "--eval", "--print", also="L", also_long=("--load",), valued="tpJCH"),
    **_named("tclsh wish", _interpreter(Code())),
    **_named("elixir iex groovy scala crystal kotlin osascript", _evaluates("e", "--eval", "--rpc-eval")),
    **_named("guile racket gosh gracket", _evaluates("ce", "--eval")),
    **_named("sbcl clisp ecl", _evaluates("x", "--eval", also_long=("--load",))),
    **_named("ghc ghci ocaml runghc", _evaluates("e")),
    "swipl": _evaluates("gt", "--goal"),
    **_named("pwsh powershell", Program(
        Kind.INTERPRETER,
        Code(words=re.compile(r"[-/](?:c|e|ec|co\w*|en\w*)", re.IGNORECASE), long=("--command",), ends=False),
    )),
    "erl": Program(code=Code(words=re.compile(r"-(?:eval|run|s)"), ends=False), input=Input(("-noshell", "-noinput"))),
    "emacs": Program(
        code=Code(words=re.compile(r"--?(?:eval|execute|funcall|load|script)(?:=.*)?|-[fl]", re.DOTALL), ends=False),
        hides=Hides.TEXT,
    ),
    "emacsclient": _runs("e", "--eval"),
    # builtins that read their words again
    "eval": _again("leave out eval: the value is one word already", reads_variables=True),
    "trap": _again('write value={PLACE}; and use "$value" in single quotes behind trap'),
    "let": _again("write n={PLACE}; [[ $n =~ ^[0-9]+$ ]] || exit 1; and then calculate with n"),
    **_named("unset read mapfile readarray", _again(_NAME_VARIABLE)),
    # programs with a language of their own
    **_named("awk gawk mawk nawk", _AWK),
    **_named("sed gsed ssed", _SED),
    **_named("make gmake", _MAKE),
    **_named("vim vi nvim view vimdiff rvim gvim", _EDITOR),
    "ex": _EDITOR._replace(input=Input(("-c",))),
    "ed": Program(again=Again(_IN_SCRIPT), input=Input(()), hides=Hides.TEXT),
    "gdb": Program(
        again=Again("put the commands into a file, and read the value there from the environment"),
        input=Input(("-batch",)), hides=Hides.TEXT,
    ),
    "lldb": _takes_commands("-b", code=Code("okOK", ("--one-line", "--source", "--batch"), _IN_SCRIPT, ends=False),
                            hides=Hides.TEXT),
    "m4": _takes_commands(code=Code("D", ("--define",), _IN_ENVIRONMENT, ends=False)),
    "dc": _takes_commands("-e", code=Code("e", ("--expression",), _IN_SCRIPT, ends=False)),
    "gnuplot": _takes_commands("-e", code=Code("e", (), _IN_ENVIRONMENT, ends=False)),
    "expect": _takes_commands("-c", code=Code("c", (), _IN_ENVIRONMENT), hides=Hides.TEXT),
    **_named("R octave", _takes_commands("-e", "-f", "CMD", "--eval", code=Code("e", ("--eval",)))),
    **_named("psql mysql mariadb mongo mongosh redis-cli",
             _takes_commands("-c", "-f", "-e", "--command", "--file", "--execute", "--eval",
                             code=_SQL)._replace(reach=_ANYWHERE)),
    **_named("clickhouse clickhouse-client", _takes_commands("-q", "--query", code=_SQL)),
    **_named("sqlite sqlite3 duckdb", _takes_commands(code=_SQL_SHELL)),
    # other users, other machines, other times
    **_named("su runuser", _LOGIN),
    **_named("sg newgrp capsh", _LOGIN._replace(input=None)),
    **_named("script flock", _LOGIN._replace(code=Code("c", ("--command",), _IN_SCRIPT, ends=False), input=None)),
    "ssh": Program(
        again=Again("send it as data: printf '%s' {PLACE} | ssh HOST 'value=$(cat); ...'", reads_variables=True),
        reach=Reach(1, _SSH_VALUED), hides=Hides.TEXT,
    ),
    "mosh": Program(again=Again(_IN_SCRIPT), reach=Reach(1, _SSH_VALUED), hides=Hides.TEXT),
    "sftp": Program(code=Code("", (), _NAME_IT, words=_SFTP_WORDS, ends=False), input=Input(()),
                    reach=Reach(1, _SSH_VALUED)),
    "scp": Program(code=Code("", (), _NAME_IT, words=re.compile(r"-[SoDF].*", re.DOTALL), ends=False),
                   reach=Reach(is_local_too=True)),
    "rsync": Program(code=Code("e", ("--rsh", "--rsync-path"), _NAME_IT, ends=False), reach=Reach(is_local_too=True)),
    **_named("at batch", _takes_commands("-f", hides=Hides.TEXT)),
    "crontab": _takes_commands("-l", "-r", hides=Hides.TEXT),
    "watch": Program(again=Again(_IN_SCRIPT, reads_variables=True), hides=Hides.TEXT),
    **_named("tmux hyperfine", Program(again=Again(_IN_SCRIPT), hides=Hides.TEXT)),
    "screen": _UNFOLLOWED._replace(hides=Hides.TEXT),
    "socat": Program(again=Again(_NAME_IT), hides=Hides.TEXT, reach=_ANYWHERE),
    **_named("nc ncat netcat", Program(
        code=Code("ec", ("--exec", "--sh-exec", "--lua-exec"), _NAME_IT, ends=False), hides=Hides.TEXT,
        reach=Reach(1, "wpsXx"),
    )),
    **_named("parallel sem", Program(again=Again("leave out parallel: each item is a task of its own"),
                                     input=Input((":::", "-a")), hides=Hides.TEXT)),
    "xargs": Program(
        again=Again("leave out xargs: {PLACE} is one word already"),
        wraps=Wraps(
            "0rtxpo", "nPILdasEi",
            long=("--null", "--no-run-if-empty", "--max-args", "--max-procs", "--replace", "--max-lines"),
            is_harmless=False,
        ),
    ),
    # programs that start the one that their words name
    "env": Program(
        code=Code("S", ("--split-string",), "write the words without -S",
                  valued=("-u", "-C", "--unset", "--chdir", "--block-signal", "--default-signal", "--ignore-signal")),
        wraps=Wraps("i0v", "uC", long=("--ignore-environment", "--unset"), takes_assignments=True),
    ),
    "nice": Program(wraps=Wraps("0123456789", "n", long=("--adjustment",))),
    **_named("nohup builtin", Program(wraps=Wraps())),
    "timeout": Program(wraps=Wraps("v", "sk", 1, ("--foreground", "--preserve-status", "--kill-after", "--signal"))),
    "stdbuf": Program(wraps=Wraps("", "ioe", long=("--input", "--output", "--error"))),
    "setsid": Program(wraps=Wraps("cfw", long=("--fork", "--wait", "--ctty"))),
    "ionice": Program(wraps=Wraps("t", "cn", long=("--class", "--classdata", "--ignore"))),
    "chrt": Program(wraps=Wraps("abfimorR", "", 1)),
    "taskset": Program(wraps=Wraps("ac", "", 1, ("--all-tasks", "--cpu-list"))),
    "time": Program(wraps=Wraps("pvaq", "fo", long=("--verbose", "--portability"))),
    "exec": Program(wraps=Wraps("cl", "a")),
    "command": Program(wraps=Wraps("p")),
    "numactl": Program(wraps=Wraps("", "NmCip", long=("--cpunodebind", "--membind", "--interleave", "--localalloc"))),
    "sudo": Program(
        input=Input(asks=("-s", "-i", "--shell", "--login")),
        wraps=Wraps("AEHbnkPS", "ugCDhpRrtT", long=("--preserve-env", "--user", "--group"), is_harmless=False,
                    takes_assignments=True),
    ),
    "doas": Program(input=Input(asks=("-s",)), wraps=Wraps("nLs", "uC", is_harmless=False)),
    "strace": Program(wraps=Wraps("fFqvdtTyc", "eoPsSu", is_harmless=False)),
    "chroot": Program(wraps=Wraps("", "", 1, ("--userspec", "--groups", "--skip-chdir"), is_harmless=False)),
    "unshare": Program(wraps=Wraps("muinpUCTrcf", "SGRw", is_harmless=False)),
    "firejail": Program(wraps=Wraps(is_harmless=False)),
    "find": Program(wraps=Wraps(behind=("-exec", "-execdir", "-ok", "-okdir"))),
    **_named("fd fdfind", Program(wraps=Wraps(behind=("-x", "-X", "--exec", "--exec-batch")))),
    **_named("systemd-run busybox toybox", _UNFOLLOWED._replace(hides=Hides.TEXT)),
    **_named("srun sbatch mpirun mpiexec apptainer singularity nsenter bwrap xvfb-run pkexec run0 machinectl setpriv "
             "start-stop-daemon dbus-run-session rlwrap unbuffer entr ltrace perf valgrind gosu su-exec tini dumb-init "
             "fakeroot proot torify torsocks proxychains proxychains4 cgexec prlimit chronic ifne catchsegv "
             "nix-shell nix direnv mise pipenv bundle distrobox toolbox lxc", _UNFOLLOWED),
    **_named("docker podman", _UNFOLLOWED._replace(
        reach=Reach(verbs=("pull", "push", "run", "build", "login", "compose", "create")),
    )),
    "kubectl": _UNFOLLOWED._replace(reach=_ANYWHERE),
    "npx": _UNFOLLOWED._replace(code=Code("c", ("--call",), _IN_SCRIPT), reach=_ANYWHERE),
    "npm": Program(code=Code("c", ("--call",), _IN_SCRIPT, ends=False), hides=Hides.PROGRAMS,
                   reach=Reach(verbs=("install", "i", "ci", "add", "update", "publish", "exec", "audit"))),
    **_named("yarn pnpm", Program(hides=Hides.PROGRAMS, reach=_ANYWHERE)),
    "uv": _UNFOLLOWED._replace(
        reach=Reach(verbs=("pip", "add", "sync", "lock", "tool", "run", "python", "build", "publish")),
    ),
    "uvx": _UNFOLLOWED._replace(reach=_ANYWHERE),
    "conda": _UNFOLLOWED._replace(reach=Reach(verbs=("install", "create", "update"))),
    "poetry": _UNFOLLOWED._replace(reach=Reach(verbs=("install", "add", "update", "lock", "publish"))),
    # ordinary programs that start others with some options
    **_named("tar gtar bsdtar", _TAR),
    "git": _GIT,
    "hg": _runs("", "--config", words=r"alias\..*"),
    "svn": _runs("", "--config-option", "--diff-cmd", "--diff3-cmd", "--editor-cmd"),
    "zip": _runs("", "--unzip-command", words=r"-T+.*"),
    "sort": _runs("", "--compress-program")._replace(prints_files=True),
    "split": _runs("", "--filter"),
    "install": _runs("", "--strip-program"),
    "cpio": _runs("", "--rsh-command"),
    "tcpdump": _runs("z"),
    "man": _runs("PH", "--pager", "--html"),
    **_named("less more", _runs(words=r"\+.*")),
    "rg": _runs(words=r"--pre(?:=.*)?|--hostname-bin(?:=.*)?"),
    "fzf": _runs("", "--preview", "--bind", "--execute"),
    "gcc": _runs(words=r"-wrapper"),
    "curl": Program(reach=_CURL, prints_files=True, doubtful=re.compile(r"\A(?s:-K.*|--config.*)\Z")),
    "wget": Program(
        code=Code("", ("--use-askpass", "--execute"), _NAME_IT, words=re.compile(r"-e.*", re.DOTALL), ends=False),
        reach=_WGET, prints_files=True,
    ),
    # programs that use the network
    "ssh-copy-id": _reaches(Reach(1, _SSH_VALUED)),
    **_named("telnet traceroute host nslookup whois", _reaches(_FIRST)),
    **_named("ftp lftp", Program(code=Code("ec", (), _IN_SCRIPT, ends=False), input=Input(("-c",)), reach=_FIRST)),
    "ping": _reaches(Reach(1, "cWiIst")),
    **_named("dig nmap aria2c axel yt-dlp youtube-dl http https xh lynx w3m rclone aws gsutil gcloud az gh "
             "mosquitto_pub mosquitto_sub smbclient brew dnf yum huggingface-cli hf", _reaches(_ANYWHERE)),
    "pip": _reaches(Reach(verbs=("install", "download", "wheel", "index", "search"))),
    "pipx": _UNFOLLOWED._replace(reach=Reach(verbs=("install", "run", "upgrade", "inject"))),
    "gem": _reaches(Reach(verbs=("install", "update", "fetch", "push"))),
    "cargo": _reaches(Reach(verbs=("install", "fetch", "add", "update", "publish", "build"))),
    "go": _reaches(Reach(verbs=("get", "install", "mod"))),
    **_named("apt apt-get", _reaches(
        Reach(verbs=("install", "update", "upgrade", "full-upgrade", "dist-upgrade", "download", "source"))
    )),
    "apk": _reaches(Reach(verbs=("add", "update", "upgrade", "fetch"))),
    "ollama": _reaches(Reach(verbs=("pull", "push", "run", "create"))),
    # programs that print files
    **_named("cat tac zcat gzcat bzcat xzcat zstdcat gunzip bunzip2 gzip xz zstd head tail uniq cut unzip dd pv "
             "[ [[ test", Program(prints_files=True)),
}  # fmt: skip

#: Put in place of a program that is not in the table.
_ORDINARY = Program()
_VERSION = re.compile(r"-?\d[\d.]*$")  # php8.2, python3, perl5.36.0, bash-5.2


# ------------------------------------------------------------------ questions


def unversioned(name: str) -> str:
    """The name of a program in the table without its version; any other name as it is."""
    bare = _VERSION.sub("", name)
    return bare if name not in PROGRAMS and bare in PROGRAMS else name


def program_named(name: str) -> Program:
    """What is known about a program of this name; an ordinary one where it is not in the table."""
    return PROGRAMS.get(unversioned(name), _ORDINARY)


def code_in(
    program: Program, words: Sequence[str], vanishing: Container[int] = (), *, beside: bool = True
) -> Iterator[int]:
    """Which arguments of a program (`words`, without its name) are program text or hold it, in their order.

    `vanishing` are those that may turn out to be no word at all. With `beside` also text that runs beside the program.
    """
    if program.text is not None:
        return code_in_text(program.text, words, vanishing)
    return (
        iter(())
        if program.code is None
        else _CodeSearch(program, program.code, words, vanishing, beside).found()
    )


class _CodeSearch:
    """One command line on its way to the words of it that are program text."""

    def __init__(
        self, program: Program, code: Code, words: Sequence[str], vanishing: Container[int], beside: bool
    ) -> None:
        self._program, self._code = program, code
        self._words, self._vanishing = words, vanishing
        self._letters = code.letters + (code.also if beside else "")
        self._long = (*code.long, *(code.also_long if beside else ()))
        self._operands = 0

    def found(self) -> Iterator[int]:
        """The first pass follows the options; whole words and verbs count wherever they stand."""
        seen = dict.fromkeys([*self._announced(), *self._marked()])
        return iter(sorted(place for place in seen if place < len(self._words)))

    def _announced(self) -> Iterator[int]:
        """Text behind an option: for shells the first operand behind all options, for others the next word."""
        is_announced = False
        at = 0
        if self._code.is_dashless and self._words and not self._words[0].startswith("-"):
            if any(letter in self._words[0] for letter in self._letters):
                yield from range(1, 1 + len(self._words[0]))  # the values follow in the order of the letters
            at = 1
        while at < len(self._words):
            text = self._words[at]
            if text == "--" or (self._program.kind is Kind.PYTHON and text == "-m"):
                # What follows is no option any more; behind `python -m` it is arguments of the module.
                at += 1
                if text == "-m" or not is_announced:
                    yield from self._operands_from(at)
                    return
                continue
            if not _is_option(text):
                if is_announced:
                    yield at
                yield from self._operand(at)
                if (
                    (is_announced or self._code.ends)
                    and at not in self._vanishing
                    and not self._is_verb(text)
                ):
                    return
            elif is_long(text, self._long):
                yield at
                if "=" not in text:
                    at += 1
                    yield at
            elif _in_cluster(text, self._letters):
                if self._program.kind is Kind.SHELL:
                    is_announced = True
                else:
                    yield from (at, at + 1)
                    at += 1
            elif text in self._code.valued:
                at += 1
            at += 1

    def _operand(self, at: int) -> Iterator[int]:
        if self._code.operands is not None and self._operands >= self._code.operands:
            yield at
        self._operands += at not in self._vanishing

    def _operands_from(self, at: int) -> Iterator[int]:
        for place in range(at, len(self._words)):
            yield from self._operand(place)

    def _is_verb(self, text: str) -> bool:
        return text in self._program.verbs

    def _marked(self) -> Iterator[int]:
        code = self._code
        for at, text in enumerate(self._words):
            if code.words is not None and code.words.fullmatch(text):
                yield at
                if "=" not in text:
                    yield at + 1
            if text in code.verbs:
                yield from range(at + 1, len(self._words))
                return


def _is_option(text: str) -> bool:
    return text[:1] in ("-", "+") and text not in ("-", "--")


def is_long(text: str, long: tuple[str, ...]) -> bool:
    """Whether a word is one of these long options, also cut short as most programs accept it."""
    name = text.partition("=")[0]
    return len(name) > 3 and name.startswith("--") and any(each.startswith(name) for each in long)


def _in_cluster(text: str, letters: str) -> bool:
    return text[0] == "-" and text[1:2] != "-" and any(letter in text[1:] for letter in letters)


def code_in_text(text: Text, words: Sequence[str], vanishing: Container[int] = ()) -> Iterator[int]:
    """Which arguments of awk or sed are program text."""
    at, has_program = 0, False
    while at < len(words):
        word = words[at]
        if word[:1] != "-" or word in ("-", "--"):
            if not has_program and word != "--":
                yield at
            if at not in vanishing and word != "--":
                return
        elif word[1:2] == "-":
            is_code = is_long(word, text.long)
            has_program = has_program or is_code or is_long(word, text.long_files)
            if is_code:
                yield at
            if is_code and "=" not in word:
                at += 1
                yield from (at,) if at < len(words) else ()
        elif word[1:2] in text.valued:
            at += len(word) == 2
        elif word[-1] in text.scripts or word[1:2] in (*text.files, *text.scripts):
            has_program = True
            is_code = word[-1] in text.scripts or word[1:2] in text.scripts
            if is_code:
                yield from (place for place in (at, at + 1) if place < len(words))
            at += len(word) == 2 or word[-1] in text.scripts
        at += 1
