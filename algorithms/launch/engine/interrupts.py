"""Requests to stop: Ctrl-C, SIGTERM, or a hook."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from algorithms import parts
from algorithms.launch.engine import hosts

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HOOK = -1
# Seconds: `timeout` signals the process, and then its group with the process in it.
ONE_SIGNAL = 0.1
CODES = {"SIGINT": 128 + signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM}  # exit codes


GC_CALLBACK = "_xla_gc_callback"  # jax's, which runs while Python collects garbage


def heed_at_once() -> None:
    """Lets Ctrl-C end what runs, also where it comes in jax's callback of Python's garbage
    collection: an exception that is raised there is lost, and the program would go on."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, at_once)


def at_once(number: int, frame: Any) -> None:
    """The handler; in that callback it sends the signal again, a moment later."""
    if frame is None or frame.f_code.co_name != GC_CALLBACK:
        raise KeyboardInterrupt
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()


class Stop(Exception):
    """A hook raises it to end the run after this point, saved and ready to go on."""


class Terminated(SystemExit):
    """What SIGTERM ends Python code with: exit code 143, and a message."""

    def __init__(self, message: str = ""):
        super().__init__(message)
        self.code = CODES["SIGTERM"]


def ended_by(name: str, message: str) -> BaseException:
    """The exception for a signal: Terminated for SIGTERM, else KeyboardInterrupt."""
    return Terminated(message) if name == "SIGTERM" else KeyboardInterrupt(message)


class Interrupt:
    """The first signal asks to stop after this point, the second aborts at once.

    SIGTERM is what schedulers send before they kill: SLURM at a time limit or a preemption,
    Kubernetes when a pod has to go. A signal that the process ignores stays ignored. A handler of
    the user's own is called once everything is saved, and then heeds signals again.
    """

    def __enter__(self) -> "Interrupt":
        self.asked = 0  # the number of the signal, or HOOK
        self.last = -math.inf  # seconds: when a signal came
        self.reason = ""
        self.before: dict[int, Any] = {}
        return self

    def listen(self) -> None:
        """Heeds signals from here on; before that the first one aborts."""
        if not self.before and threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in SIGNALS}
            # None: a handler that is not Python's, which Python could not restore.
            self.before = {s: b for s, b in before.items() if b not in (None, signal.SIG_IGN)}
            for number in self.before:
                signal.signal(number, self._handle)

    def __exit__(self, *_: Any) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)
        before = self.before.get(self.asked)
        if callable(before) and before not in (signal.default_int_handler, at_once):
            before(self.asked, None)

    def stop(self, reason: str) -> None:
        """A hook has asked; a signal comes first."""
        if self.asked <= 0:
            self.asked, self.reason = HOOK, reason or "a hook"

    def agreed(self) -> str:
        """Why all processes stop now: "SIGINT", "SIGTERM", or what a hook said; else empty."""
        asked = hosts.highest(abs(self.asked))
        if not asked:
            return ""
        if asked == abs(HOOK):
            return self.reason or "a hook"
        return signal.Signals(asked).name

    def heard(self) -> str:
        """The signal that a process has got, "SIGINT" or "SIGTERM", also in the last point, where
        a hook's wish to stop changes nothing; else empty."""
        number = hosts.highest(max(self.asked, 0))
        return signal.Signals(number).name if number else ""

    def _handle(self, number: int, _: Any) -> None:
        first, self.last = self.last, time.monotonic()
        if self.asked > 0 and self.last - first < ONE_SIGNAL:
            return
        if self.asked > 0:
            raise ended_by(signal.Signals(number).name, "aborted by a second signal")
        self.asked = number
        again = "Ctrl-C again aborts" if number == signal.SIGINT else "another signal aborts"
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"\nstopping at the next point; {again} at once\n".encode())


def in_background(function: Callable, *args: Any) -> Any:
    """The result of a call in another thread, so that this one answers to signals meanwhile."""
    call = parts.usual_jax()(function)
    future: Future = Future()

    def work():
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future.result()
