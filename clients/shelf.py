"""The shelf: caches of devices that stay open from one participation to the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage import SampleCache


class Shelf:
    """Keeps caches open, at most so many at a time; the one used longest ago is closed first.

    A cache that changed since this process saved it, in another process or in a participation
    that failed, is opened anew, from its last saved state.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._caches: OrderedDict[int, SampleCache] = OrderedDict()

    @contextmanager
    def take(
        self, partition: int, reopen: Callable[[], SampleCache], before: int | None = None
    ) -> Iterator[SampleCache]:
        """Lend the cache of a device for one participation, opened with `reopen` if need be.

        Args:
            partition: the device.
            reopen: opens its cache, at the newest state saved with a tag below `before`.
            before: None for the newest state of all.
        """
        cache = self._caches.pop(partition, None)
        if cache is not None and not (cache.is_current and _is_before(cache, before)):
            cache.close()
            cache = None
        if cache is None:  # and not `or`: an empty cache is false
            cache = reopen()
        try:
            yield cache
        except BaseException:
            cache.close()
            raise
        self._caches[partition] = cache
        while len(self._caches) > self._places:
            self._caches.popitem(last=False)[1].close()

    def put_away(self, partition: int) -> None:
        """Close the cache of a device, if it is open."""
        cache = self._caches.pop(partition, None)
        if cache is not None:
            cache.close()

    def close(self) -> None:
        """Close all caches."""
        while self._caches:
            self._caches.popitem()[1].close()


def _is_before(cache: SampleCache, tag: int | None) -> bool:
    return tag is None or cache.tag is None or cache.tag < tag
