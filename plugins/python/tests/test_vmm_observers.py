"""Callbacks before and after the memory behind a region's addresses changes."""

import gc
import signal
import sys
import unittest
import weakref

import gpu_vmm
from gpu_vmm import vmm
from gpu_vmm.vmm import BackingEffect, Outcome, Range
from support import Case, Counted, backend, in_threads
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
        gc.collect()
        live = gpu_vmm._callbacks._known
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

    def test_object_that_observes_its_own_region_is_collected(self):
        opened, ended = backend(), []

        class Cache:
            def __init__(self):
                self.region, _ = region_of(opened, 1)
                self.region.on_backing_change(after=self.changed)

            def changed(self, change, outcome):
                ended.append((change.operation, self.region is not None))

        found = weakref.ref(Cache())
        gc.collect()
        self.assertIsNone(found())
        self.assertEqual(ended, [("free reservation", True)])

    def test_tensor_keeps_the_callbacks(self):
        region, _ = region_of(backend(), 1)
        registrar = Registrar()
        region.on_backing_change(registrar.before, registrar.after)
        tensor = region.view().__dlpack__()
        del region
        gc.collect()
        self.assertEqual(registrar.taken(), [])
        del tensor
        self.assertEqual([type(note) for note in registrar.taken()], [vmm.BackingChange, tuple])

    def test_refused_end_is_reported(self):
        region, _ = region_of(backend(), 1)
        noted = []
        before, sys.unraisablehook = sys.unraisablehook, lambda note: noted.append(str(note.exc_value))
        self.addCleanup(setattr, sys, "unraisablehook", before)
        registrar = Registrar()
        registrar.refusal = LookupError("in use")
        region.on_backing_change(registrar.before)
        region.close()
        self.assertEqual(noted, ["in use"])
        self.assertIsNone(gpu_vmm._callbacks.this_thread.raised)

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


class Signalled(Counted):
    """Sends a signal to the process before or behind a call, in which Python runs no handler."""

    def __init__(self, function, before):
        super().__init__(function)
        self.before = before

    def __call__(self, *arguments):
        if self.before:
            signal.raise_signal(signal.SIGUSR1)
        result = super().__call__(*arguments)
        if not self.before:
            signal.raise_signal(signal.SIGUSR1)
        return result


class Signals(Case):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, signal.default_int_handler))
        self.region, self.unit = region_of(backend(), 1)
        self.registrar = Registrar()
        self.region.on_backing_change(self.registrar.before, self.registrar.after)

    def tearDown(self):
        self.assertIs(signal.getsignal(signal.SIGUSR1), signal.default_int_handler)

    def test_signal_before_the_callback_refuses(self):
        with Signalled("gpu_vmm_region_suspend", True), self.assertRaises(KeyboardInterrupt):
            self.region.suspend()
        self.assertEqual((self.region.size, self.registrar.taken()), (self.unit, []))

    def test_signal_behind_the_change_is_raised(self):
        with Signalled("gpu_vmm_region_suspend", False), self.assertRaises(KeyboardInterrupt):
            self.region.suspend()
        self.assertEqual([type(note) for note in self.registrar.taken()], [vmm.BackingChange, tuple])
        self.assertTrue(self.region.is_suspended)

    def test_signal_in_a_callback_is_handled_there(self):
        seen = []

        def after(change, outcome):
            try:
                signal.raise_signal(signal.SIGUSR1)
            finally:
                seen.append(outcome)

        self.region.on_backing_change(after=after)
        with self.assertRaises(KeyboardInterrupt):
            self.region.suspend()
        self.assertEqual((seen, self.region.is_suspended), ([Outcome.CHANGED], True))

    def test_interpreter_ends_during_a_callback(self):
        self.script(
            """
            import threading, time
            from gpu_vmm import vmm
            from support import backend
            from test_vmm import region_of

            region, _ = region_of(backend(), 1)
            inside = threading.Event()

            def before(change):
                inside.set()
                time.sleep(0.3)

            def work():
                while True:
                    region.suspend()
                    region.resume()

            region.on_backing_change(before)
            threading.Thread(target=work, daemon=True).start()
            inside.wait()
            """
        )


if __name__ == "__main__":
    unittest.main()
