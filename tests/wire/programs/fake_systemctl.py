"""Plays systemctl for tests: writes down what it is asked, starts and stops plain processes, plays states.

    systemctl [--user] start|stop|restart|show [OPTION...] -- UNIT

Copied into a folder of its own, where `calls` gets one line per call; `UNIT.json` says {"argv": [...]} for a unit that
is a process, or {"states": [...]} for one whose states are played, one per `show`, the last one for ever; `UNIT.pid`
is its process. Imports little: it is started a hundred times in a test run.
"""

import json
import os
import sys
import time

folder = os.path.dirname(os.path.abspath(__file__))
words = [word for word in sys.argv[1:] if word != "--user"]
verb, unit = words[0], words[-1]
definition, pid_file = f"{folder}/{unit}.json", f"{folder}/{unit}.pid"
with open(f"{folder}/calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\n")


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def pid():
    found = int(read(pid_file) or 0)
    try:
        state = read(f"/proc/{found}/stat").rsplit(")", 1)[1].split()[0]
    except (IndexError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else found


def start(facts):
    if "argv" in facts and not pid():
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        argv = facts["argv"]
        write(pid_file, str(os.posix_spawn(argv[0], argv, os.environ, file_actions=null, setsid=True)))


def stop(facts):
    time.sleep(facts.get("stop_s", 0))
    if found := pid():
        os.kill(found, 9)
        while pid():
            time.sleep(0.005)


def show(facts):
    active, job = ("active" if pid() else "inactive"), ""
    if facts.get("states"):
        active = facts["states"][0]
        write(definition, json.dumps({**facts, "states": facts["states"][1:] or facts["states"]}))
        job = "77" if active == "activating" else ""
    print(f"ActiveState={active}\nResult={'exit-code' if active == 'failed' else 'success'}\nJob={job}")


text = read(definition)
if not text and verb != "show":
    print(f"Failed to {verb} {unit}: Unit {unit} not found.", file=sys.stderr)
    sys.exit(5)
facts = json.loads(text or "{}")
if verb in ("stop", "restart"):
    stop(facts)
if verb in ("start", "restart"):
    start(facts)
if verb == "show":
    show(facts)
sys.exit(facts.get("exit", 0) if verb != "show" else 0)
