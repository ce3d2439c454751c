"""Runs the commands that README shows, as a person would paste them, and compares what they print."""

import os
import pathlib
import re
import subprocess
import uuid
from dataclasses import dataclass, field

from cluster import ROOT

HERE_DOCUMENT = re.compile(r"<<-?'?(\w+)'?")


@dataclass
class Command:
    """A command, here document and all, and the lines that README shows for it."""

    text: str
    output: list = field(default_factory=list)


def commands(heading):
    """The commands of a section's console blocks, until a line says `By hand`."""
    section = (ROOT / "README.md").read_text().split(f"\n{heading}\n", 1)[1].split("\nBy hand", 1)[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    lines = iter("".join(blocks).splitlines())
    found = []
    for line in lines:
        if not line.startswith("$ "):
            found[-1].output.append(line)
            continue
        text = [line.removeprefix("$ ")]
        while text[-1].endswith("\\"):
            text.append(next(lines))
        if document := HERE_DOCUMENT.search(text[0]):
            while text[-1] != document[1]:
                text.append(next(lines))
        found.append(Command("\n".join(text)))
    return found


def comparable(line):
    """A line without what differs from run to run: words with digits, and the widths of columns."""
    return [word for word in re.split(r"\s+|(?<=\w)/(?=\w)", line.strip()) if not re.search(r"\d", word)]


class Shell:
    """A bash that runs one command after the other in a folder in which the repository's files lie, and keeps the variables."""

    def __init__(self, folder, environment, replace=()):
        for entry in ROOT.iterdir():
            (folder / entry.name).symlink_to(entry)
        self.folder, self.replace = folder, replace
        self.process = subprocess.Popen(["bash"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, start_new_session=True)
        self.run("set -o pipefail")

    def run(self, text):
        """What a command prints; fails where it does."""
        for old, new in self.replace:
            text = text.replace(old, new)
        end = uuid.uuid4().hex
        self.process.stdin.write(f"{text}\nstatus=$?; echo; echo {end} $status\n")
        self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            assert line, f"{text}: the shell ended: {lines}"
            if line.startswith(end):
                break
            lines.append(line.rstrip("\n"))
        printed = lines[:-1] if lines and not lines[-1] else lines
        assert line.split()[1] == "0", f"$ {text}\n" + "\n".join(printed)
        return printed

    def end(self):
        """Ends it with everything that it started."""
        try:
            os.killpg(self.process.pid, 15)
        except ProcessLookupError:
            pass
        self.process.wait(timeout=30)


def run(heading, folder, environment, replace=(), leave=()):
    """Runs all commands of a section but those of `leave`; returns each with what it printed."""
    shell = Shell(pathlib.Path(folder), environment, replace)
    try:
        return [(command, shell.run(command.text)) for command in commands(heading) if command.text not in leave]
    finally:
        shell.end()
