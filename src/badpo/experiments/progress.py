"""How far a training stage is, told to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

from transformers import TrainerCallback

Progress = Callable[[str, float], None]


class Ticker(TrainerCallback):
    """Tells a progress function how far a training stage is."""

    def __init__(self, what: str, progress: Progress):
        self._what = what
        self._progress = progress

    def on_step_end(self, args, state, control, **kwargs):
        """Tell it every ten steps and at the end."""
        if state.global_step % 10 == 0 or state.global_step == state.max_steps:
            self._progress(self._what, state.global_step / state.max_steps)
