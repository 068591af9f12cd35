"""A SuperLink of our own, for simulation or deployment, and Flower's command line pointed at it.

It has a Flower home of its own and one port, on the loopback interface, that serves all of its
APIs. With certificates all of them take TLS, and only nodes that are registered may connect.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from experiments.engines import hermetic
from experiments.engines.certificates import Certificates
from experiments.engines.kept import Ended, Kept, how, keeping
from fedio.errors import RunError

NAME = "superlink"
CONNECTION = "fedio"
START_TIMEOUT_S = 120.0
POLL_S = 0.1
STATUS_POLL_S = 1.0
# Somebody may take a port between our finding it free and the program's binding it.
ATTEMPTS = 5
PORT_IS_TAKEN = "address already in use"


class SuperLink:
    """A running SuperLink."""

    def __init__(self, kept: Kept, certificates: Certificates | None = None) -> None:
        """Take what it is started with.

        Args:
            kept: what keeps its processes.
            certificates: with them it takes TLS only, and from registered nodes only.
        """
        self.kept = kept
        self.certificates = certificates
        self.port = 0
        self.pid = 0

    @property
    def folder(self) -> Path:
        """The temporary folder of its processes."""
        return self.kept.folder

    @property
    def address(self) -> str:
        """Host and port of all its APIs."""
        return f"{hermetic.HOST}:{self.port}"

    def open(self, *, simulation: bool, nice: int = 0) -> None:
        """Start it and wait until it answers.

        Raises:
            InputError: Flower's programs are not installed beside this Python.
            RunError: it does not start.
        """
        options = ["--simulation"] if simulation else []
        if self.certificates is None:
            options.append("--insecure")
        else:
            options += [*self.certificates.server_options, "--enable-supernode-auth"]
        command = [hermetic.program("flower-superlink"), *options, "--host", hermetic.HOST]
        for _ in range(ATTEMPTS):
            self.port = hermetic.free_port()
            self.pid = self.kept.start(NAME, [*command, "--port", str(self.port)], nice=nice)
            if self._is_up():
                self._connect()
                return
        raise RunError(f"Flower's SuperLink found its port taken {ATTEMPTS} times; run again")

    def start(self, app: Path, federation: str = "", run_config: str = "") -> str:
        """Start a run of a Flower app and return its id.

        Args:
            app: the app's folder.
            federation: Flower's federation config, as in "num-supernodes=10".
            run_config: overrides of the app's own config, in TOML.

        Raises:
            RunError: Flower refuses it.
        """
        command = ["run", str(app), CONNECTION]
        if federation:
            command += ["--federation-config", federation]
        if run_config:
            command += ["--run-config", run_config]
        return str(self._ask(*command)["run-id"])

    def wait(
        self,
        run_id: str,
        meanwhile: Callable[[Sequence[Ended]], None] = lambda _: None,
        heard: Callable[[str], None] = lambda _: None,
    ) -> tuple[str, str, str]:
        """Wait until a run has ended; return its status, Flower's details of it, and its log.

        Args:
            run_id: what `start` returned.
            meanwhile: called again and again, with the commands of others that have ended.
            heard: told each line that the run logs.

        Raises:
            RunError: the SuperLink ended before the run.
        """
        stream = f"log-{run_id}"
        while True:
            # The stream ends with the run. Asking for the status again and again instead would
            # start a process each time, which takes a second of a core.
            self.kept.start(
                stream, [hermetic.program("flwr"), "log", run_id, CONNECTION, "--stream"]
            )
            self._until_ended(stream, meanwhile, heard)
            (found,) = self._ask("list", CONNECTION, "--run-id", run_id)["runs"]
            status, details = str(found["status"]), str(found["status-details"])
            if status.startswith("finished"):
                return status, details, self.kept.printed(stream)
            time.sleep(STATUS_POLL_S)

    def others_ended(self) -> list[Ended]:
        """Return the commands kept beside it that have ended since this was last asked.

        Raises:
            RunError: it has itself.
        """
        ended = self.kept.ended()
        for one in ended:
            if one.name == NAME:
                raise RunError(f"Flower's SuperLink ended before the run did ({how(one.code)})")
        return ended

    def _is_up(self) -> bool:
        """Wait until it listens; False if somebody else took its port."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not hermetic.listens(self.pid, self.port):
            for ended in self.kept.ended():
                words = self.kept.last_words(ended.name)
                if PORT_IS_TAKEN in words.lower():
                    return False
                raise RunError(f"Flower's SuperLink did not start ({how(ended.code)})\n{words}")
            if time.monotonic() > deadline:
                raise RunError(f"Flower's SuperLink does not answer after {START_TIMEOUT_S:g} s")
            time.sleep(POLL_S)
        return True

    def _connect(self) -> None:
        """Tell Flower's command line where it is."""
        connection: dict[str, object] = {"address": self.address}
        if self.certificates is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(self.certificates.ca)
        home = self.kept.folder / "home"
        home.mkdir(exist_ok=True)
        text = tomli_w.dumps({"superlink": {CONNECTION: connection}})
        (home / "config.toml").write_text(text)

    def _until_ended(
        self,
        name: str,
        meanwhile: Callable[[Sequence[Ended]], None],
        heard: Callable[[str], None],
    ) -> None:
        while True:
            ended = self.others_ended()
            for line in self.kept.news(name):
                heard(line)
            meanwhile([one for one in ended if one.name != name])
            if any(one.name == name for one in ended):
                return
            time.sleep(POLL_S)

    def _ask(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command and return the JSON it prints."""
        done = subprocess.run(  # noqa: S603 - a fixed command
            [hermetic.program("flwr"), *arguments, "--format", "json"],
            env=self.kept.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer = json.loads(done.stdout)
        except json.JSONDecodeError:
            answer = {"success": False, "error-message": (done.stdout + done.stderr).strip()}
        if done.returncode or not answer.get("success"):
            said = answer.get("error-message", "no reason given")
            words = self.kept.last_words(NAME)
            raise RunError(f"flwr {arguments[0]} failed: {said}\n{words}")
        return dict(answer)


@contextmanager
def superlink(inherited: Sequence[int] = ()) -> Iterator[SuperLink]:
    """Start a SuperLink for simulation; when the block ends, everything that was started is gone.

    Args:
        inherited: descriptors that are open until everything is gone, even if this process ends
            before that.

    Raises:
        InputError: Flower's programs are not installed beside this Python.
        RunError: it does not start.
    """
    with keeping(inherited) as kept:
        link = SuperLink(kept)
        link.open(simulation=True)
        yield link
