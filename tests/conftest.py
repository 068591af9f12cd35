"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Shared machines stall now and then; that says nothing about the code. The same examples each time
# keep a failure on one machine a failure on all.
settings.register_profile(
    "fedio", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedio")
