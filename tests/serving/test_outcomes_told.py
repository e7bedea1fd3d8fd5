"""How a plan ended is told, whatever a look at the sensors says then."""

from __future__ import annotations

from rig import FakeSensors, running

from trimtab.domain.actions import SetContext
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Snapshot


class BrokenSensors(FakeSensors):
    """Of which no full look can be taken."""

    def snapshot(self, at_s: float, wall_s: float) -> Snapshot:
        raise ValueError("nobody foresaw this")


async def test_a_look_that_fails_after_an_action_does_not_end_its_plan(tiny: ModelSpec) -> None:
    async with running(tiny) as rig:
        await rig.serves("fp32")
        rig.daemon._ticks._sensors = BrokenSensors()
        rig.daemon.dispatcher.execute([SetContext(10**6, 1024), SetContext(10**6 + 1, 512)])
        await rig.daemon.dispatcher.finished()

        assert rig.daemon.gateway.effective_context() == 512
        assert "look" in [told["part"] for event, told in rig.log.lines if event == "part_failed"]
