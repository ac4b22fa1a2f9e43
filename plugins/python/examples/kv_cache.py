"""A cache of keys and values for an inference engine: sequences in pages, under a limit of device memory that always holds.

Each sequence is one range of addresses, so that kernels need no table of pages. A sequence that continues another one shares its pages,
and gets a copy of the last one when it writes there. If pages are short, the sequences that were used longest ago go to host memory, and
to a file beyond the host's limit. They return at the same addresses. Runs on the best device, or on host memory.

    PYTHONPATH=plugins/python GPU_VMM_C_LIBRARY=target/release/libgpu_vmm_c.so python3 plugins/python/examples/kv_cache.py
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Callable, Collection, Dict, List, Optional

import gpu_vmm
from gpu_vmm import vmm


@dataclass
class Sequence:
    """A sequence of tokens. Its region is suspended while the sequence is evicted."""

    region: vmm.Region
    tokens: int = 0
    used: int = 0
    """When it was used last: the number of the step."""
    on_host: int = 0
    """The number of bytes that host memory keeps for it."""


class KvCache:
    """The keys and values of all sequences, on device 0. One thread at a time may use it.

    ``token``: the number of bytes of one token. ``longest``: the largest number of tokens of a sequence. ``limit`` and ``host_limit``: the
    largest numbers of bytes on the device, and of evicted contents in host memory. ``directory``: where files with further contents are.
    """

    def __init__(
        self, backend: vmm.Backend, token: int, longest: int, limit: int, host_limit: int, directory: Optional[str] = None
    ) -> None:
        page = max(32 * token, vmm.reservation_unit(backend))
        self.pages = vmm.PageList(backend, page, limit)
        self._backend, self._token, self._host_limit, self._directory = backend, token, host_limit, directory
        self._page = self.pages.page_size
        self._reserve = -(-longest * token // self._page) * self._page
        self._sequences: Dict[int, Sequence] = {}
        self._numbers, self._clock = itertools.count(), itertools.count(1)
        self._to_host = self._to_file = self._restored = self._copied = 0

    def begin(self) -> int:
        """Returns the number of a new, empty sequence."""
        return self._add(Sequence(vmm.Region(self._backend, self._reserve)))

    def fork(self, parent: int) -> int:
        """Returns the number of a new sequence that continues another one. No byte is copied."""
        self._use([parent])
        one, region = self._sequences[parent], vmm.Region(self._backend, self._reserve)
        if one.tokens:
            one.region.fork(one.region.size, region)
        return self._add(Sequence(region, one.tokens, one.used))

    def step(self, batch: Collection[int], tokens: int = 1) -> List[int]:
        """Restores all sequences of a batch, adds tokens to each, and returns the addresses of these tokens' keys and values.

        Waits for the devices if it evicts or copies. Raises OutOfMemory if the batch exceeds the limit: then no sequence has another token.
        """
        self._use(batch)
        for number in batch:
            self._with_room(batch, self._make_writable, self._sequences[number], tokens)
        for number in batch:
            self._sequences[number].tokens += tokens
        ends = ((one.region.address, one.tokens - tokens) for one in map(self._sequences.__getitem__, batch))
        return [address + first * self._token for address, first in ends]

    def append(self, number: int, contents: bytes) -> None:
        """Adds tokens whose keys and values the host has."""
        self.step([number], len(contents) // self._token)
        self._sequences[number].region.write(contents, self._sequences[number].tokens * self._token - len(contents))

    def read(self, number: int, first: int, count: int) -> bytes:
        """Returns the keys and values of tokens."""
        self._use([number])
        return self._sequences[number].region.read(first * self._token, count * self._token)

    def end(self, number: int) -> None:
        """Ends a sequence. Its pages are free, but those that other sequences share."""
        self._sequences.pop(number).region.close()

    def stats(self) -> Dict[str, int]:
        """Returns the numbers of sequences and of evictions, and sizes in bytes."""
        every = self._sequences.values()
        pages, evicted = self.pages.stats(), sum(one.region.is_suspended for one in every)
        return {
            "sequences": len(every), "evicted": evicted, "to_host": self._to_host, "to_file": self._to_file, "restored": self._restored,
            "on_host": sum(one.on_host for one in every), "held": pages["held"], "free": pages["free"], "limit": pages["budget"],
            "copied": self._copied,
        }  # fmt: skip

    def _add(self, sequence: Sequence) -> int:
        number = next(self._numbers)
        self._sequences[number] = sequence
        return number

    def _use(self, batch: Collection[int]) -> None:
        now = next(self._clock)
        for number in batch:
            one = self._sequences[number]
            one.used = now
            if one.region.is_suspended:
                self._with_room(batch, one.region.resume, self.pages)
                one.on_host = 0
                self._restored += 1

    def _make_writable(self, one: Sequence, tokens: int) -> None:
        """Gives a sequence memory for more tokens, and a last page of its own."""
        region, end = one.region, one.tokens * self._token
        last = region.size - self._page
        if end < region.size and region.access(last, 0) != vmm.Access.READ_WRITE:
            self._copied += region.make_private(last, self._page, self.pages)
        region.grow(end + tokens * self._token, self.pages)

    def _with_room(self, batch: Collection[int], work: Callable[..., object], *arguments: object) -> object:
        """Does work, and evicts sequences outside of the batch while there are too few pages."""
        while True:
            try:
                return work(*arguments)
            except gpu_vmm.OutOfMemory:
                awake = [one for number, one in self._sequences.items() if number not in batch and not one.region.is_suspended]
                if not awake:
                    raise
                self._evict(min(awake, key=lambda one: one.used))

    def _evict(self, one: Sequence) -> None:
        """Moves the contents of a sequence out of the device. Shared pages go with the last sequence that uses them."""
        if sum(other.on_host for other in self._sequences.values()) + one.region.size <= self._host_limit:
            one.on_host = one.region.suspend("host", shared=True)
            self._to_host += 1
        else:
            one.region.suspend("file", self._directory, shared=True)
            self._to_file += 1


def main() -> None:
    token, prompt, answer, forks = 64 << 10, 40, 60, 5
    backend = gpu_vmm.open()
    page = max(32 * token, vmm.reservation_unit(backend))  # 32 tokens, or more if the device has larger pages
    cache = KvCache(backend, token, prompt + answer, limit=16 * page, host_limit=8 * page)
    prompts = [cache.begin() for _ in range(4)]
    for number in prompts:
        cache.append(number, bytes([number]) * prompt * token)
    batches = [[cache.fork(number) for number in prompts] for _ in range(forks)]
    print(len(prompts), "prompts,", forks * len(prompts), "sequences that share their pages:", cache.stats()["held"] // page, "pages of 16")
    for _ in range(0, answer, 20):
        for number in itertools.chain(*batches):
            cache.append(number, bytes([number]) * 20 * token)
            assert cache.stats()["held"] <= cache.stats()["limit"]
    for batch in batches:
        for number, parent in zip(batch, prompts):
            assert cache.read(number, 0, prompt) == bytes([parent]) * prompt * token
            assert cache.read(number, prompt, answer) == bytes([number]) * answer * token
    stats = cache.stats()
    print("evictions to the host and to a file:", stats["to_host"] > 0, stats["to_file"] > 0, "within the limit:", stats["held"] <= 16 * page)
    for number in itertools.chain(prompts, *batches):
        cache.end(number)
    print("all pages are free:", cache.stats()["held"] == cache.stats()["free"])


if __name__ == "__main__":
    main()
