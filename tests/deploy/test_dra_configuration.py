# SPDX-License-Identifier: BSD-3-Clause
"""What claims and classes may state, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.deploy.kubernetes.dra.configuration import (
    SHARES,
    Configuration,
    ConfigurationError,
    configuration,
)
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.preferences import check
from tests.support.scheduler import GIB

KIND = {"apiVersion": "jupyter-gpushare/v1alpha1", "kind": "GpuShareConfig"}


def stated(source: str, **parameters: Any) -> dict[str, Any]:
    return {
        "source": source,
        "opaque": {"driver": "jupyter-gpushare", "parameters": {**KIND, **parameters}},
    }


def of_class(**parameters: Any) -> dict[str, Any]:
    return stated("FromClass", **parameters)


def of_claim(**parameters: Any) -> dict[str, Any]:
    return stated("FromClaim", **parameters)


@pytest.mark.parametrize(
    ("allocated", "expected"),
    [
        ([], Configuration()),
        ([of_claim()], Configuration()),
        ([of_claim(**{"class": "auto"})], Configuration()),
        (
            [of_claim(**{"class": "background"}, memory="20GiB", request=0.25)],
            Configuration("background", {"request": 0.25, "memory": 20 * GIB}),
        ),
        # Of the claim's keys and the class's, the claim's count, in whatever order they come.
        (
            [of_claim(weight=2, limit=0.5), of_class(weight=3, request=0.125)],
            Configuration(None, {"request": 0.125, "limit": 0.5, "weight": 2}),
        ),
        # What a claim leaves open is not more than the maximum.
        (
            [of_class(maximum={"memory": "8GiB", "weight": 0.5, "request": 0.5})],
            Configuration(None, {"weight": 0.5, "memory": 8 * GIB}),
        ),
        ([of_class(weight=4, maximum={"weight": 2})], "weight (4) is above the maximum"),
        ([of_claim(request=0.5), of_class(maximum={"request": 0.25})], "(0.5) is above"),
        ([of_claim(limit=0), of_class(maximum={"limit": 0.25})], "limit (no limit) is above"),
        ([of_claim(maximum={"limit": 0.25})], "only a DeviceClass can state it"),
        ([of_class(maximum={"class": "auto"})], "must be an object with the keys request"),
        ([of_class(maximum=["limit"])], "must be an object with the keys request"),
        ([of_class(maximum={"limit": 2})], "invalid limit of the DeviceClass's maximum"),
        ([of_claim(memory="much")], "invalid memory of the claim: invalid size 'much'"),
        ([of_claim(**{"class": "urgent"})], "priority must be auto, interactive, agent"),
        ([of_claim(gpus=2)], "unknown key gpus of the claim; use class, request"),
        ([of_claim(kind="Other")], "are 'Other' of 'jupyter-gpushare/v1alpha1'; use kind"),
        ([{"opaque": {"driver": "jupyter-gpushare"}}], "must be an object, not None"),
        # What other drivers are told is theirs.
        ([{"opaque": {"driver": "nic.example.org", "parameters": []}}, {}], Configuration()),
    ],
)
def test_configuration_follows_from_class_and_claim(
    allocated: list[dict[str, Any]], expected: Configuration | str
) -> None:
    if isinstance(expected, Configuration):
        assert configuration(allocated) == expected
        return
    with pytest.raises(ConfigurationError) as refused:
        configuration(allocated)
    assert expected in str(refused.value)


def test_host_memory_that_a_claim_takes_is_its_cap() -> None:
    assert configuration([], GIB).shares == {"host": GIB}
    assert configuration([of_claim(host="2GiB")], GIB).shares == {"host": GIB}
    assert configuration([of_claim(host="512MiB")], GIB).shares == {"host": GIB // 2}


VALUES = {
    "request": st.floats(0, 1),
    "limit": st.floats(0, 1),
    "weight": st.floats(0.01, 1000),
    "memory": st.integers(1, 1 << 50),
    "host": st.integers(1, 1 << 50),
}
SOME = st.fixed_dictionaries({}, optional=VALUES)


@given(SOME, SOME, SOME)
def test_no_claim_gets_more_than_the_maximum(
    claim: dict[str, Any], class_: dict[str, Any], maximum: dict[str, Any]
) -> None:
    try:
        found = configuration([of_claim(**claim), of_class(**class_, maximum=maximum)])
    except ConfigurationError:
        return
    entitlement = ev.Entitlement(**found.shares)  # type: ignore[arg-type]
    check(ev.Entitle("user:ada", entitlement))
    for key, most in maximum.items():
        value = getattr(entitlement, key)
        caps = key in ("limit", "memory", "host")
        assert value <= most or (caps and most == 0)
        assert value > 0 or most == 0 or not caps
    for key in claim:
        assert found.shares.get(key, SHARES[key]) == claim[key]
