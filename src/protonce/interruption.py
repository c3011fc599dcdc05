"""Ctrl-C and SIGTERM: training finishes its step, saves a checkpoint, and exits."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """Context in which the first signal is only recorded, in `asked`; a second one ends the program at once.

    Python handles signals in the main thread only; in other threads this does nothing.

    Args:
        patient: record a second signal as well. torchrun repeats the terminal's Ctrl-C, and kills processes that take
            too long.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, patient: bool = False) -> None:
        self.patient = patient
        self.asked: int | None = None  # the signal
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def end(self, number: int) -> None:
        """Exit as the signal would have.

        Raises:
            KeyboardInterrupt: for Ctrl-C.
            SystemExit: for SIGTERM, with the exit code that shells and schedulers expect.
        """
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.asked = number
        if not self.patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
