# SPDX-License-Identifier: BSD-3-Clause
"""How the energy of a GPU is divided among its users."""

from __future__ import annotations

from jupyter_gpushare.cli.show.report import energy_text
from jupyter_gpushare.scheduler.observability.energy import Divided, EnergyMeter, Part
from jupyter_gpushare.scheduler.observability.usage_report import HOUR
from tests.scheduler.quota_node import Node
from tests.scheduler.usage_histories import NOON, Clock, Opener, Reading


def test_energy_is_divided_in_proportion_to_gpu_time(open_history: Opener) -> None:
    node = Node(1)
    ada, ben = node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")
    clock = Clock(node, open_history(None), {"GPU-0": 100.0})
    clock.run(10)
    clock.watts["GPU-0"] = 400.0
    ada.run()
    clock.run(10)
    ben.run()
    clock.run(10)
    ada.end()
    ben.end()
    clock.watts["GPU-0"] = 100.0
    clock.run(10)
    found = clock.report("user")
    assert (found["energy"], found["idle_energy"], found["measured"]) == (10_000, 2_000, 40)
    assert {row["user"]: (row["seconds"], row["energy"]) for row in found["rows"]} == {
        "ada": (15, 6_000),
        "ben": (5, 2_000),
    }


def test_idle_energy_is_what_the_gpu_consumes_without_work(open_history: Opener) -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0")
    clock = Clock(node, open_history(None), {"GPU-0": 100.0})
    clock.run(10)
    for _ in range(10):
        # A tenth of a second at 700 W, and the rest at 100 W.
        clock.joules["GPU-0"] += 160.0
        clock.wall += 1
        kernel.run()
        node.sleep(0.1)
        kernel.end()
        node.sleep(0.9)
        clock.look()
    found = clock.report("user")
    assert (found["energy"], found["idle_energy"]) == (2_600, 1_900)
    assert [row["energy"] for row in found["rows"]] == [700]


def test_without_a_counter_the_power_is_integrated(open_history: Opener) -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0")
    clock = Clock(node, open_history(None), {"GPU-0": 200.0})
    clock.counts = False
    clock.look()
    kernel.run()
    clock.run(10)
    found = clock.report("user")
    assert (found["energy"], found["measured"]) == (2_000, 10)
    # A machine that was asleep consumed an unknown amount.
    node.sleep(60)
    clock.look()
    assert clock.report()["energy"] == 2_000


def test_energy_without_readings_is_not_measured(open_history: Opener) -> None:
    node = Node(2)
    kernels = [node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-1")]
    clock = Clock(node, open_history(None), {"GPU-0": 300.0, "GPU-1": None})
    for kernel in kernels:
        kernel.run()
    clock.run(10)
    found = clock.report("user")
    assert (found["energy"], found["measured"], found["present"]) == (3_000, 10, 20)
    energies = {row["user"]: (row["energy"], row["measured"]) for row in found["rows"]}
    assert energies == {"ada": (3_000, 10), "ben": (None, 0)}
    text = energy_text({**found, "prices": None})
    assert text == "0.001 kWh (0.000 idle), 50% of the GPU hours not measured"
    bare = open_history(None)
    Clock(node, bare).run(5)
    found = bare.report(NOON, NOON + HOUR)
    assert (found["energy"], found["idle_energy"]) == (None, None)
    assert energy_text({**found, "prices": None}) == "energy not measured"


def test_a_reset_of_the_counter_is_not_energy(open_history: Opener) -> None:
    node = Node(1)
    clock = Clock(node, open_history(None), {"GPU-0": 100.0})
    clock.run(5)
    # The driver was loaded again. The power bridges the gap.
    clock.joules["GPU-0"] = 0.0
    clock.run(5)
    assert clock.report()["energy"] == 1_000


def test_energy_waits_for_gpu_time_that_is_reported_afterwards() -> None:
    meter: EnergyMeter[str] = EnergyMeter()
    now, joules = 0.0, 0.0

    def look(**busy: float) -> Divided[str] | None:
        nonlocal now, joules
        now, joules = now + 1, joules + 500
        meter.add_time(1.0, Reading(now, joules, None))
        for user, seconds in busy.items():
            meter.add_busy(user, seconds)
        return meter.divide(["ada", "ben"])

    meter.add_time(0.0, Reading(0.0, 0.0, None))
    for _ in range(5):
        assert look(ben=0.5) is None
    divided = look(ben=0.5, ada=3.0)
    assert divided == Divided({"ada": Part(3.0, 1500), "ben": Part(3.0, 1500)}, 3000, 0, 6)
    # Work that is never reported counts as long as it runs.
    for _ in range(29):
        assert look() is None
    divided = look()
    assert divided == Divided({"ada": Part(15.0, 7500), "ben": Part(15.0, 7500)}, 15000, 0, 30)
    # When it is reported at last, it does not count twice.
    assert look(ben=31.0, ada=31.0) == Divided(
        {"ada": Part(0.5, 250), "ben": Part(0.5, 250)}, 500, 0, 1
    )


def test_a_late_reading_is_waited_for() -> None:
    meter: EnergyMeter[str] = EnergyMeter()
    first, second = Reading(0.0, 0.0, None), Reading(2.0, 800.0, None)
    meter.add_time(0.0, first)
    meter.add_busy("ada", 1.0)
    meter.add_time(1.0, first)
    assert meter.divide() is None
    meter.add_busy("ben", 1.0)
    meter.add_time(1.0, second)
    assert meter.divide() == Divided({"ada": Part(1.0, 400), "ben": Part(1.0, 400)}, 800, 0, 2)
