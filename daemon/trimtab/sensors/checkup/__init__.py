"""What this machine offers, what it lacks and what to do about it: the checks behind `doctor`."""

from trimtab.sensors.checkup.finding import Finding, Level, Machine
from trimtab.sensors.checkup.registry import CHECKS, examine

__all__ = ["CHECKS", "Finding", "Level", "Machine", "examine"]
