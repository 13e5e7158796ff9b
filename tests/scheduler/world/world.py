# SPDX-License-Identifier: BSD-3-Clause
"""The hard rules of docs/contributing/design.md, checked in any order of events.

Obedient processes surround the scheduler's core. They have physical memory of their own and answer truthfully, but at
any time: the core's decisions wait in a process's inbox, and its answers wait in its outbox. Processes die with their
memory still on the GPU, other programs allocate and free memory, and the core is replaced at any moment.

Memory moves in pieces. An eviction takes host memory when a copy starts, and a restore returns host memory when its
copy has ended. Under a grant that fills memory gradually, nothing is restored beyond the announced room. A process that
finds no host memory waits for some, and finally reports a partial eviction. Some processes may oversubscribe a GPU:
they use memory that does not fit from where it is.

Where the driver can checkpoint, idle processes are asked to park. A parked process does nothing until it is told that
it is awake. The driver takes its contexts off the GPU and puts them back at any time, or fails, or does not finish.
A part of each context stays on the GPU meanwhile.

Some processes are stopped for a while, or for ever: they receive and send nothing, and keep their memory and lease.

Users change their preferences at any time, also for absent groups. Entitlements, the focus and the policy change, too.

The modules, each building on those above it:

==========================  ============================================================================================
``constants``               the size of the world, and its users
``processes``               a process and its memory
``state``                   the state of the world, and questions about it
``decisions``               checks of each decision of the core
``machine``                 events reach the core, and time passes
``moves``                   processes evict and restore their memory
``obedience``               processes receive decisions and send events
``driver``                  the driver checkpoints and restores processes
``memory_invariants``       memory is never exceeded, and the sums are right
``scheduling_invariants``   indices, queue, pacing, quotas and parked processes are consistent
``process_rules``           processes attach, allocate, submit work, die and stop
``driver_rules``            processes hibernate, and the driver succeeds or fails
``user_rules``              users and administrators give commands
``node_rules``              the node starts, time passes, connections break and the scheduler is replaced
``service_rules``           every process that can be served is served in bounded time
``world``                   all of these together
==========================  ============================================================================================
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.scheduler.world.driver_rules import DriverRules
from tests.scheduler.world.memory_invariants import MemoryInvariants
from tests.scheduler.world.process_rules import ProcessRules
from tests.scheduler.world.scheduling_invariants import SchedulingInvariants
from tests.scheduler.world.service_rules import ServiceRules
from tests.scheduler.world.user_rules import UserRules
from tests.support.properties import examples


class World(
    ProcessRules,
    DriverRules,
    UserRules,
    ServiceRules,
    MemoryInvariants,
    SchedulingInvariants,
):
    """Processes, users, driver and node, in any order of events, with all invariants."""


World.TestCase.settings = settings(
    max_examples=examples(80),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
