"""Requests to stop: Ctrl-C, SIGTERM, or a hook."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from algorithms.launch.compute import hosts

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HOOK = -1


class Stop(Exception):
    """A hook raises it to end the run after this point, saved and ready to go on."""


class Interrupt:
    """The first signal asks to stop after this point, the second aborts at once.

    SIGTERM is what schedulers send before they kill: SLURM at a time limit or a preemption,
    Kubernetes when a pod has to go.
    """

    def __enter__(self) -> "Interrupt":
        self.asked = 0  # the number of the signal, or HOOK
        self.reason = ""
        self.before: dict[int, Any] = {}
        return self

    def listen(self) -> None:
        """Heeds signals from here on; before that the first one aborts."""
        if not self.before and threading.current_thread() is threading.main_thread():
            self.before = {s: signal.signal(s, self._handle) for s in SIGNALS}

    def __exit__(self, *_: Any) -> None:
        for number, before in self.before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def stop(self, reason: str) -> None:
        """A hook has asked."""
        self.asked, self.reason = HOOK, reason or "a hook"

    def agreed(self) -> str:
        """Why all processes stop now: "SIGINT", "SIGTERM", or what a hook said; else empty."""
        asked = hosts.highest(abs(self.asked))
        if not asked:
            return ""
        if asked == abs(HOOK):
            return self.reason or "a hook"
        return signal.Signals(asked).name

    def _handle(self, number: int, _: Any) -> None:
        if self.asked > 0:
            raise KeyboardInterrupt(number)
        self.asked = number
        again = "Ctrl-C again aborts" if number == signal.SIGINT else "another signal aborts"
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"\nstopping at the next point; {again} at once\n".encode())


def in_background(function: Callable, *args: Any) -> Any:
    """The result of a call in another thread, so that this one answers to signals meanwhile."""
    future: Future = Future()

    def work():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future.result()
