"""The core: predict, choose, keep stable. `step` is the one door; it reads no file and no clock."""

from trimtab.planner.controller import Step, step
from trimtab.planner.state import State

__all__ = ["State", "Step", "step"]
