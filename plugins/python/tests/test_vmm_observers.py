"""Callbacks before and after the memory behind a region's addresses changes."""

import gc
import sys
import unittest

import gpu_vmm
from gpu_vmm import vmm
from gpu_vmm.vmm import BackingEffect, Outcome, Range
from support import Case, backend, in_threads
from test_vmm import region_of


class Registrar:
    """What code that registers memory with a network card does, with every call noted."""

    def __init__(self):
        self.noted, self.refusal = [], None

    def before(self, change):
        if self.refusal is not None:
            raise self.refusal
        self.noted.append(change)

    def after(self, change, outcome):
        self.noted.append((change, outcome))

    def taken(self):
        noted, self.noted = self.noted, []
        return noted


class Observers(Case):
    def told(self, registrar, operation, effect, parts, outcome=Outcome.CHANGED, address=None):
        change, (again, ended) = registrar.taken()
        self.assertEqual(change, again)
        self.assertEqual((change.operation, change.effect, change.parts, ended), (operation, effect, parts, outcome))
        if address is not None:
            self.assertEqual((change.address, change.new_address), (address, None))

    def test_each_change_is_announced(self):
        opened = backend()
        region, unit = region_of(opened, 2)
        other, _ = region_of(opened, 2)
        one, two = Registrar(), Registrar()
        number = region.on_backing_change(one.before, one.after)
        other.on_backing_change(two.before, two.after)
        # Both units are announced as one range or as two, as they are mapped.
        region.suspend()
        self.told(one, "suspend", BackingEffect.REMOVED, one.noted[0].parts, address=region.address)
        region.resume()
        self.told(one, "resume", BackingEffect.RESTORED, one.noted[0].parts)
        region.swap(0, other, unit, unit)
        self.told(one, "swap", BackingEffect.REPLACED, (Range(0, unit),))
        self.told(two, "swap", BackingEffect.REPLACED, (Range(unit, unit),))
        region.unmap(unit, unit)
        self.told(one, "unmap", BackingEffect.REMOVED, (Range(unit, unit),))
        region.grow(2 * unit)
        self.assertEqual(one.taken(), [])
        region.shrink(unit)
        self.told(one, "shrink", BackingEffect.REMOVED, (Range(unit, unit),))
        region.remove_observer(number)
        region.shrink(0)
        self.assertEqual(one.taken(), [])
        with self.raises(gpu_vmm.NotFound):
            region.remove_observer(number)
        other.close()
        self.assertEqual([type(note) for note in two.taken()], [vmm.BackingChange, tuple])

    def test_an_exception_refuses(self):
        region, unit = region_of(backend(), 1)
        one, two = Registrar(), Registrar()
        region.on_backing_change(one.before, one.after)
        region.on_backing_change(two.before, two.after)
        two.refusal = LookupError("a transfer is under way")
        for call in (region.suspend, lambda: region.shrink(0), lambda: region.unmap(0, unit)):
            with self.assertRaises(gpu_vmm.Busy) as raised:
                call()
            self.assertIs(raised.exception.__cause__, two.refusal)
            self.assertEqual([note[1] for note in one.taken() if isinstance(note, tuple)], [Outcome.UNCHANGED])
            self.assertEqual((region.size, region.read(0, 1), two.taken()), (unit, b"\1", []))
        # An error for another reason does not have the refusal as its cause.
        with self.assertRaises(gpu_vmm.Unaligned) as raised:
            region.unmap(0, 1)
        self.assertIsNone(raised.exception.__cause__)
        two.refusal = KeyboardInterrupt()
        with self.assertRaises(KeyboardInterrupt):
            region.suspend()
        two.refusal = None
        region.suspend()

    def test_calls_in_a_callback_do_not_wait(self):
        opened = backend()
        region, _ = region_of(opened, 1)
        other, _ = region_of(opened, 1)
        raised = []

        def before(change):
            for call in (lambda: region.size, region.suspend, lambda: region.remove_observer(1)):
                try:
                    call()
                except gpu_vmm.Busy as error:
                    raised.append(error)
            raised.append(other.read(0, 1))

        region.on_backing_change(before)
        region.suspend()
        self.assertEqual(len(raised), 4)
        self.assertEqual(raised[3], b"\1")

    def test_an_exception_after_a_change_is_reported(self):
        region, unit = region_of(backend(), 1)
        noted = []
        before, sys.unraisablehook = sys.unraisablehook, noted.append
        self.addCleanup(setattr, sys, "unraisablehook", before)

        def after(change, outcome):
            raise LookupError("not registered")

        region.on_backing_change(after=after)
        self.assertEqual(region.suspend(), unit)
        self.assertEqual([str(note.exc_value) for note in noted], ["not registered"])

    def test_callback_may_close_its_region(self):
        region, unit = region_of(backend(), 1)
        seen = []

        def before(change):
            seen.append(change.operation)
            region.close()

        region.on_backing_change(before)
        self.assertEqual(region.suspend(None), unit)
        self.assertTrue(region.closed)
        self.assertEqual(seen[0], "suspend")

    def test_callbacks_are_released(self):
        opened = backend()
        live = gpu_vmm.vmm.observer._live
        start = len(live)
        region, unit = region_of(opened, 1)
        banked = vmm.BankedRegion(opened, unit)
        number = region.on_backing_change(lambda change: None)
        region.on_backing_change()
        banked.on_backing_change(lambda change: None)
        self.assertEqual(len(live), start + 3)
        region.remove_observer(number)
        self.assertEqual(len(live), start + 2)
        region.close()
        banked.close()
        with self.assertRaises(TypeError):
            region_of(opened, 1)[0].on_backing_change("no function")
        gc.collect()
        self.assertEqual(len(live), start)

    def test_banks(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        one = Registrar()
        with vmm.BankedRegion(opened, unit) as banked:
            banked.on_backing_change(one.before, one.after)
            front, back = banked.add(unit), banked.add(unit)
            banked.select(front)
            self.told(one, "select bank", BackingEffect.RESTORED, (Range(0, unit),))
            banked.select(back)
            self.told(one, "select bank", BackingEffect.REPLACED, (Range(0, unit),))
            one.refusal = LookupError("in use")
            for call in (banked.hide, lambda: banked.select(front), lambda: banked.remove(back)):
                with self.assertRaises(gpu_vmm.Busy) as raised:
                    call()
                self.assertIs(raised.exception.__cause__, one.refusal)
            self.assertEqual(banked.selected, back)
            one.refusal = None

    def test_threads_exchange_two_regions(self):
        opened = backend()
        one, _ = region_of(opened, 1)
        other, _ = region_of(opened, 1)
        counts = {}

        def before(change):
            counts[change.operation] = counts.get(change.operation, 0) + 1

        one.on_backing_change(before)
        other.on_backing_change(before)
        pairs = ((one, other), (other, one))

        def work(number):
            for _ in range(20):
                pairs[number % 2][0].swap_all(pairs[number % 2][1])

        self.assertEqual(in_threads(4, work), [])
        self.assertEqual(counts, {"swap": 160})


if __name__ == "__main__":
    unittest.main()
