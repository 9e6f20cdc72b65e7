"""One turn of the controller: processes changes, then plans places for waiting workloads.

Read this first. ``Turn.take`` shows what the controller does; each step names the module that does it. Nothing here
waits for the API server: reflectors fill the cluster cache, and the executor runs the writes.

A *workload* is a single pod or a gang. A *place* is a node and GPUs for one pod. The *write lanes* limit for how many
workloads the controller writes objects at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.cluster.gpus.fleets import Fleets
from dradriver.controller.loop.dispatcher import Dispatcher
from dradriver.controller.loop.placer import Placer
from dradriver.controller.writing.executor import OWN_ERROR, Executor
from dradriver.queue.agenda import Agenda
from dradriver.queue.rechecks import Asking
from dradriver.queue.waiting import Queue
from dradriver.queue.write_lanes import Lanes

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.01  # of work before others get the loop


class Turn:
    """Runs the controller's turns.

    If an internal error concerns one workload, the controller pauses for it and goes on with all other workloads.
    """

    def __init__(
        self,
        agenda: Agenda,
        queue: Queue,
        lanes: Lanes,
        fleets: Fleets,
        dispatcher: Dispatcher,
        placer: Placer,
        executor: Executor,
    ) -> None:
        """Make an object that runs the controller's turns with these parts.

        Args:
            agenda: The pods and gangs that have to be processed, now or later.
            queue: The workloads that want places, in order.
            lanes: Limit the writes that run at once. They know which workloads wait for a free write.
            fleets: The GPUs of all nodes, with the sets of GPUs of each type of machine.
            dispatcher: Processes one pod or gang.
            placer: Gives one workload its places.
            executor: Runs the writes.
        """
        self._agenda, self._queue, self._lanes, self._fleets = agenda, queue, lanes, fleets
        self._dispatcher, self._placer, self._executor = dispatcher, placer, executor
        self._asking = Asking(queue.rechecks, agenda.wake)

    async def take(self) -> None:
        """Process everything that changed, then plan places while there are free GPUs and write lanes."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        def is_late() -> bool:
            return loop.time() - begun > SLICE_S

        while True:
            # 0. Reflectors and writers get the loop after each slice of work.
            if is_late():
                await asyncio.sleep(0)
                begun = loop.time()
            # 1. Drain: what changed stands on the agenda. Deadlines that have passed join it (``ring``).
            self._agenda.ring(loop.time())
            #    If it is empty, the workload joins it that has waited longest for a write lane which has room now.
            #    ``next`` takes it out of the line of the lanes. ``head`` only returns the position of the queue's first
            #    workload: a workload that waited for its namespace or scheduler goes on only if it comes before that.
            if not self._agenda and (writable := self._lanes.next(self._queue.head)) is not None:
                self._agenda.add(writable)
            # 2. Observe: what is so of one workload, and since when. Step: what has to be done for it. If it needs
            #    places, it enters the queue.
            if (key := self._agenda.pop()) is not None:
                self._dispatcher.look(key)
                continue
            # 3. With nothing to look at: make the tables of machines that were not seen before, until ``is_late``.
            #    Returns whether there were any.
            if self._fleets.catch_up(is_late):
                continue
            # 4. Order the queue: check some of the equivalence classes that found no place before. If a node became
            #    free for a class, its workloads may be served again. Once all classes were checked, the round is over:
            #    False until ``again``.
            if self._asking.some():
                continue
            # 5. Plan places for the first workload of the queue, have the plan written, or tell it why it waits.
            if self._serve():
                continue
            # 6. All were served. If a round of step 4 is over, the next one may begin: what the plans left free may be
            #    for other classes. Else there is nothing to do until something wakes the worker.
            if not self._asking.again():
                return

    def _serve(self) -> bool:
        """Plan a place for the queue's first workload; return whether to call this again.

        False if no workload of the queue may find a place, or if no write may begin now.
        """
        # There is no use in a plan that nobody may write now.
        if not self._lanes.room():
            return False
        self._placer.widen()
        if (due := self._queue.next()) is None:
            return False
        workload, rows = due
        if (obstacle := self._lanes.obstacle(workload.key, workload.order, schedulers=workload.schedulers)) is not None:
            self._queue.leave(workload)
            self._placer.refuse(workload, obstacle.why, is_for_all=False)
            return True
        try:
            self._placer.place(workload, rows)
        except NoPlaceError as error:
            self._placer.block(workload, error, rows)
        except WordError as error:
            self._queue.leave(workload)
            self._placer.refuse(workload, error.why)
        except Exception:
            logger.exception("Pod %s/%s: internal error. The controller tries this pod again later.", *workload.key)
            self._queue.leave(workload)
            self._executor.fail(workload, OWN_ERROR)
        return True
