"""The low-level objects: devices, physical memory, mappings, access, and closing."""

import copy
import math
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import gpu_vmm
from gpu_vmm import vmm
from support import NAME, Case, backend, in_threads


def region_of(opened, units, fill=True):
    """Returns a region with one piece of memory in each unit, each filled with its number."""
    unit = vmm.reservation_unit(opened)
    region = vmm.Region(opened, units * unit)
    for at in range(units if fill else 0):
        region.grow((at + 1) * unit)
        region.fill(at * unit, unit, at + 1)
    return region, unit


class Devices(Case):
    def test_devices(self):
        opened = backend()
        found = vmm.devices(opened)
        self.assertEqual([device.number for device in found], list(range(opened.devices)))
        first = found[0]
        self.assertEqual((first, first.backend), (vmm.Device(opened), opened))
        self.assertEqual(len({first, vmm.Device(opened)}), 1)
        self.assertNotEqual(first, vmm.Device(opened, 1))
        free, total = first.memory()
        self.assertTrue(0 < free <= total)
        unit = first.granularity()
        self.assertEqual(unit & (unit - 1), 0)
        self.assertEqual(vmm.reservation_unit(opened) % unit, 0)
        recommended = first.recommended_granularity()
        self.assertEqual((recommended % unit, recommended), (0, vmm.recommended_granularity(opened)))
        for wanted in False, True:
            with vmm.Region(opened, recommended, recommended_granularity=wanted) as region:
                self.assertEqual(region.granularity, recommended if wanted else unit)
        self.assertTrue(first.can_access(0))
        with self.raises(gpu_vmm.NoSuchDevice):
            first.can_access(4711)
        with self.raises(gpu_vmm.NoSuchDevice):
            vmm.Device(opened, 4711).granularity()
        with self.raises(gpu_vmm.NoSuchDevice):
            vmm.Device(opened, 4711).recommended_granularity()
        with self.assertRaises(TypeError):
            vmm.Device("host")

    def test_capabilities_have_reasons(self):
        found = vmm.Device(backend()).capabilities()
        self.assertIn("peer access", [one["feature"] for one in found])
        for one in found:
            self.assertTrue(one["available"] or one["note"], one)


class Memory(Case):
    def test_create_read_write(self):
        opened = backend()
        unit = vmm.granularity(opened)
        with vmm.PhysicalMemory(opened, unit - 1) as memory:
            self.assertEqual((memory.size, memory.properties), (unit, vmm.Properties()))
            memory.write(b"unmapped", 3)
            self.assertEqual(memory.read(3, 8), b"unmapped")
            self.assertEqual(memory.read(unit - 1, 1), memory.read(unit - 1, 1))
            for offset, size in ((unit, 1), (0, unit + 1), (1 << 63, 1), (0, 1 << 63)):
                with self.raises(gpu_vmm.OutOfRange):
                    memory.read(offset, size)
            with self.raises(gpu_vmm.OutOfRange):
                memory.write(b"over", unit - 3)
            other = memory.retain()
        self.assertTrue(memory.closed)
        self.assertEqual(other.read(3, 8), b"unmapped")
        self.assertTrue(other.is_same(other.retain()))
        copied = vmm.PhysicalMemory(opened, unit)
        copied.copy_from(1, other, 3, 8)
        self.assertEqual((copied.read(1, 8), copied.holders), (b"unmapped", 1))
        with self.raises(gpu_vmm.OutOfRange):
            copied.copy_from(unit - 1, other, 0, 2)
        self.assertFalse(other.is_same(vmm.PhysicalMemory(opened, unit)))

    def test_arguments(self):
        opened = backend()
        for kind, make in (
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory(opened, 0)),
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory(opened, -1)),
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory(opened, 1 << 64)),
            (gpu_vmm.OutOfMemory, lambda: vmm.PhysicalMemory(opened, 1 << 45)),
            (gpu_vmm.NoSuchDevice, lambda: vmm.PhysicalMemory(opened, 1, vmm.Properties(device=4711))),
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory(opened, 1, vmm.Properties(location=7))),
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory(opened, 1, vmm.Properties(handle_types=1 << 20))),
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory.import_fd(opened, -1, 1)),
            (gpu_vmm.InvalidArgument, lambda: vmm.PhysicalMemory.import_fabric(opened, b"short", 1)),
            (gpu_vmm.PeerError, lambda: vmm.PhysicalMemory.import_offer(opened, b"no offer")),
            (gpu_vmm.PeerError, lambda: vmm.Region.import_offer(opened, b"")),
            (TypeError, lambda: vmm.PhysicalMemory("host", 1)),
            (TypeError, lambda: vmm.PhysicalMemory(opened, 1.5)),
            (TypeError, lambda: vmm.PhysicalMemory(opened, 1, 0)),
        ):  # fmt: skip
            with self.raises(kind):
                make()

    @unittest.skipUnless(hasattr(socket, "send_fds"), "needs file descriptors")
    def test_descriptors(self):
        opened = backend()
        properties = vmm.Properties(handle_types=vmm.HandleTypes.FD)
        unit = vmm.granularity(opened, properties)
        memory = vmm.PhysicalMemory(opened, unit, properties)
        memory.write(b"shared")
        number = memory.export_fd()
        try:
            imported = vmm.PhysicalMemory.import_fd(opened, number, unit, properties)
            self.assertEqual(imported.read(0, 6), b"shared")
            imported.write(b"S")
            self.assertEqual(memory.read(0, 2), b"Sh")
        finally:
            os.close(number)
        with self.raises(gpu_vmm.Unsupported):
            vmm.PhysicalMemory(opened, unit).export_fd()
        with self.raises(gpu_vmm.Unsupported):
            vmm.PhysicalMemory(opened, unit).export_fabric()


class Mapped(Case):
    def test_one_memory_at_two_addresses(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        memory = vmm.PhysicalMemory(opened, unit)
        with vmm.Region(opened, 4 * unit) as region:
            self.assertEqual((region.size, region.mappings()), (0, []))
            region.map(0, memory)
            region.map(2 * unit, memory)
            self.assertEqual(region.mappings(), [vmm.Mapping(at, unit, 0, False) for at in (0, 2 * unit)])
            self.assertEqual(region.mapping(2 * unit + 1), vmm.Mapping(2 * unit, unit, 0, False))
            self.assertTrue(region.physical(0).is_same(memory))
            self.assertIs(region.access(0, 0), vmm.Access.NONE)
            with self.raises(gpu_vmm.AccessDenied):
                region.write(b"x")
            for at in (0, 2 * unit):
                region.set_access(at, unit, 0, vmm.Access.READ_WRITE)
            self.assertIs(region.access(1, 0), vmm.Access.READ_WRITE)
            region.write(b"alias", 5)
            self.assertEqual(region.read(2 * unit + 5, 5), b"alias")
            for kind, call in (
                (gpu_vmm.AlreadyMapped, lambda: region.map(0, memory)),
                (gpu_vmm.Unaligned, lambda: region.map(1, memory)),
                (gpu_vmm.OutOfRange, lambda: region.map(4 * unit, memory)),
                (gpu_vmm.NotMapped, lambda: region.unmap(unit, unit)),
                (gpu_vmm.NotMapped, lambda: region.mapping(unit)),
                (gpu_vmm.NotMapped, lambda: region.physical(unit)),
                (gpu_vmm.NotMapped, lambda: region.read(unit, 1)),
                (gpu_vmm.OutOfRange, lambda: region.read(0, 1 << 62)),
                (gpu_vmm.NoSuchDevice, lambda: region.set_access(0, unit, 99, vmm.Access.READ)),
                (gpu_vmm.InvalidArgument, lambda: region.set_access(0, unit, 0, 2)),
                (gpu_vmm.InvalidArgument, lambda: region.fill(0, 1, 256)),
            ):  # fmt: skip
                with self.raises(kind):
                    call()
            region.unmap(0, unit)
            self.assertEqual([mapping.offset for mapping in region.mappings()], [2 * unit])
            memory.close()
            self.assertEqual(region.read(2 * unit + 5, 5), b"alias")  # the mapping holds the memory

    def test_places(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, 2 * unit, placement=vmm.Placement.RESTORABLE)
        self.assertGreaterEqual(region.reserved, 2 * unit)
        self.assertEqual(region.reserved % region.granularity, 0)
        with self.raises(gpu_vmm.AddressTaken):
            vmm.Region(opened, 2 * unit, placement=vmm.Placement.EXACT, address=region.address)
        with self.raises(gpu_vmm.OutOfAddressSpace):
            vmm.Region(opened, 1 << 60)
        with self.raises(gpu_vmm.InvalidArgument, "access is 2; expected Access.NONE, Access.READ or Access.READ_WRITE"):
            region.set_access(0, unit, 0, 2)
        for kind in vmm.Region, vmm.BankedRegion:
            with self.raises(gpu_vmm.InvalidArgument, f"address is {region.address:#x}, but placement is 0 (anywhere)"):
                kind(opened, unit, address=region.address)
            with self.raises(gpu_vmm.InvalidArgument, "placement is 3 (restorable), which takes no address"):
                kind(opened, unit, placement=vmm.Placement.RESTORABLE, address=unit)
        with self.assertRaises(ValueError):
            vmm.Region(opened, unit, placement=17)
        with self.raises(gpu_vmm.InvalidArgument):
            vmm.Region(opened, unit, alignment=3)

    def test_grow_shrink_and_move(self):
        opened = backend()
        region, unit = region_of(opened, 2)
        self.assertEqual((region.size, region.read(unit, 1)), (2 * unit, b"\2"))
        self.assertEqual((region.shrink(unit + 1), region.size), (0, 2 * unit))  # the mapping has bytes before the new end
        self.assertEqual((region.shrink(unit), region.size), (unit, unit))
        self.assertEqual(region.shrink(unit), 0)
        address = region.address
        other = region.grow_or_move(region.reserved + unit)
        self.assertEqual((region.address, region.read(0, 1)), (other, b"\1"))
        self.assertGreater(address, 0)

    def test_swap_and_copy(self):
        opened = backend()
        one, unit = region_of(opened, 2)
        other, _ = region_of(opened, 2)
        other.fill(0, 2 * unit, 9)
        address = one.address
        one.swap(unit, other, 0, unit)
        self.assertEqual((one.read(0, 1), one.read(unit, 1), other.read(0, 1)), (b"\1", b"\x09", b"\2"))
        one.swap_all(other)
        self.assertEqual((one.read(0, 1), other.read(0, 1), one.address), (b"\2", b"\1", address))
        one.copy_from(1, other, 0, 2)
        self.assertEqual(one.read(0, 4), b"\2\1\1\2")
        room = bytearray(3)
        self.assertEqual((one.read_into(0, room), bytes(room)), (3, b"\2\1\1"))
        with self.raises(gpu_vmm.InvalidArgument):
            one.read_into(0, b"read-only")
        with self.raises(gpu_vmm.InvalidArgument):
            one.swap_all(one)
        with self.raises(gpu_vmm.InvalidArgument):
            one.copy_from(0, one, 1, 1)

    def test_suspend_and_resume(self):
        region, unit = region_of(backend(), 2)
        address = region.address
        self.assertEqual((region.is_suspended, region.resume()), (False, 0))
        self.assertEqual(region.suspend(), 2 * unit)
        self.assertEqual((region.is_suspended, region.suspend("host")), (True, 0))
        with self.raises(gpu_vmm.Suspended):
            region.read(0, 1)
        self.assertEqual(region.resume(), 2 * unit)
        self.assertEqual((region.read(0, 1), region.read(unit, 1), region.address), (b"\1", b"\2", address))

    def test_fork_and_make_private(self):
        opened = backend()
        parent, unit = region_of(opened, 3)
        child = vmm.Region(opened, 4 * unit)
        self.assertEqual(parent.holders(0), 1)
        parent.fork(2 * unit, child)
        self.assertEqual((child.size, child.read(0, 1), child.read(unit, 1)), (2 * unit, b"\1", b"\2"))
        self.assertEqual([parent.holders(at * unit) for at in range(3)], [2, 2, 1])
        self.assertEqual([parent.access(at * unit, 0) for at in (0, 2)], [vmm.Access.READ, vmm.Access.READ_WRITE])
        for region in parent, child:
            with self.raises(gpu_vmm.AccessDenied):
                region.write(b"x", unit)
        self.assertEqual(child.make_private(unit, unit), unit)
        child.write(b"x", unit)
        self.assertEqual((child.read(unit, 2), parent.read(unit, 1), child.holders(0)), (b"x\2", b"\2", 2))
        self.assertEqual(parent.make_private(unit, 2 * unit), 0)  # no other region has these pages
        parent.write(b"y", unit)
        held = parent.physical(0)
        self.assertEqual(held.holders, 3)
        child.close()
        self.assertEqual((held.holders, parent.holders(0)), (2, 2))
        for kind, call in (
            (gpu_vmm.InvalidArgument, lambda: parent.fork(unit, parent)),
            (gpu_vmm.OutOfRange, lambda: parent.fork(2 * unit, vmm.Region(opened, unit))),
            (gpu_vmm.NotMapped, lambda: parent.holders(3 * unit)),
            (TypeError, lambda: parent.make_private(0, unit, [])),
        ):  # fmt: skip
            with self.raises(kind):
                call()
        if NAME == "host":  # a driver's memory is that of all its backends
            with self.raises(gpu_vmm.InvalidArgument):
                parent.fork(unit, vmm.Region(backend(), unit))

    def test_shared_memory_goes_with_its_last_region(self):
        opened = backend()
        parent, unit = region_of(opened, 2)
        child = vmm.Region(opened, 2 * unit)
        parent.fork(unit, child)
        with self.raises(gpu_vmm.Busy):
            parent.suspend()
        self.assertEqual(parent.suspend(shared=True), unit)
        self.assertEqual(child.read(0, 1), b"\1")
        self.assertEqual(child.suspend("file", shared=True), unit)
        self.assertEqual(child.suspend(shared=True), 0)
        self.assertEqual((parent.resume(), child.resume()), (2 * unit, 0))
        self.assertEqual((parent.read(0, 1), parent.read(unit, 1), child.read(0, 1)), (b"\1", b"\2", b"\1"))
        self.assertEqual((child.holders(0), child.access(0, 0)), (2, vmm.Access.READ))
        # Pinned memory has room for what is left to save, also of a region that is suspended already.
        self.assertEqual(parent.suspend(shared=True), unit)
        child.close()
        self.assertEqual(parent.suspend("pinned", shared=True), unit)
        self.assertEqual((parent.resume(), parent.read(0, 1), parent.read(unit, 1)), (2 * unit, b"\1", b"\2"))

    def test_pages_stay_within_their_budget(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        pages = vmm.PageList(opened, unit, 3 * unit + 1)
        self.assertEqual(pages.stats(), {"page": unit, "held": 0, "free": 0, "budget": 3 * unit})
        one, other = vmm.Region(opened, 4 * unit), vmm.Region(opened, 4 * unit)
        one.grow(unit + 1, pages)
        one.fill(0, 2 * unit, 5)
        with self.raises(gpu_vmm.OutOfMemory):
            other.grow(2 * unit, pages)
        one.suspend("host")
        with self.raises(gpu_vmm.Suspended):
            one.grow(4 * unit, pages)
        one.resume(pages)
        one.fork(2 * unit, other)
        self.assertEqual(other.make_private(0, unit, pages), unit)
        with self.raises(gpu_vmm.OutOfMemory):
            other.make_private(unit, unit, pages)
        self.assertEqual((other.holders(unit), pages.stats()["held"]), (2, 3 * unit))
        self.assertEqual((other.suspend(shared=True), pages.stats()["free"]), (unit, unit))
        taken = pages.take()
        taken.write(b"overwritten")
        for call in pages.take, lambda: other.resume(pages):
            with self.raises(gpu_vmm.OutOfMemory):
                call()
        taken.close()
        self.assertEqual((other.resume(pages), other.read(0, 1), other.resume(pages)), (unit, b"\5", 0))
        other.close()
        pages.set_budget(0)
        self.assertEqual((pages.stats()["held"], pages.stats()["free"], pages.page_size), (2 * unit, 0, unit))
        self.assertIn("2 pages", repr(pages))
        pages.close()
        self.assertEqual((one.read(unit, 1), repr(pages)), (b"\5", "<gpu_vmm.vmm.PageList, closed>"))
        with self.raises(gpu_vmm.InvalidArgument, "the size is zero"):
            vmm.PageList(opened, 0, unit)

    def test_another_device(self):
        opened = backend()
        region, _ = region_of(opened, 1)
        with self.raises(gpu_vmm.NoSuchDevice):
            region.move_to_device(4711)
        if opened.devices > 1 and vmm.Device(opened, 0).can_access(1) and vmm.Device(opened, 1).can_access(0):
            region.move_to_device(1)
            self.assertEqual((region.mapping(0).device, region.read(0, 1)), (1, b"\1"))

    def test_snapshot(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, unit, placement=vmm.Placement.RESTORABLE)
        region.grow(1)
        region.write(b"in a file", 3)
        path = f"{self.folder()}/snapshot"
        self.assertEqual(region.tag, "")
        region.tag = "größe 9"
        for wrong, kind in ("a\0b", gpu_vmm.InvalidArgument), (9, TypeError):
            with self.raises(kind, "tag: "):
                region.tag = wrong
        region.snapshot(path, compress=True)
        with self.raises(gpu_vmm.AddressTaken):
            vmm.Region.restore(opened, path)
        restored = vmm.Region.restore(opened, path, relocate=True)
        self.assertEqual((restored.read(3, 9), restored.tag), (b"in a file", "größe 9"))
        with self.raises(gpu_vmm.FileError):
            region.snapshot("/no/such/folder/file")

    def test_restore_on_other_devices(self):
        opened = backend()
        region, _ = region_of(opened, 1)
        path = f"{self.folder()}/snapshot"
        region.snapshot(path)
        last = opened.devices - 1

        def restored(**options):
            one = vmm.Region.restore(opened, path, relocate=True, **options)
            (other,) = vmm.restore(opened, path, relocate=True, **options)
            self.assertEqual((one.read(0, 1), other.read(0, 1)), (b"\1", b"\1"))
            self.assertEqual(one.mapping(0).device, other.mapping(0).device)
            return one.mapping(0).device

        self.assertEqual([restored(devices=devices) for devices in (None, {}, {7: 0}, last, {0: last})], [0, 0, 0, last, last])
        self.assertEqual((restored(by_uuid=True), restored(by_uuid=True, devices={0: last})), (0, last))
        for devices in opened.devices, {0: opened.devices}:
            with self.raises(gpu_vmm.NoSuchDevice, f"device {opened.devices}"):
                restored(devices=devices)
        for devices in -1, {0: -1}, {1 << 31: 0}:
            with self.raises(gpu_vmm.InvalidArgument, "devices: "):
                restored(devices=devices)
        with self.raises(TypeError, "devices: expected the number of a device, or a dict of numbers, not 'cuda:1' (str)"):
            restored(devices="cuda:1")

    @unittest.skipUnless(sys.platform == "linux", "file names are bytes on Linux")
    def test_any_name_of_a_file(self):
        region, _ = region_of(backend(), 1)
        folder = self.folder()
        for name in b"plain", b"\xff\xe9", "é".encode():
            path = os.path.join(os.fsencode(folder), name)
            for given in path, os.fsdecode(path), Path(os.fsdecode(path)):
                region.snapshot(given)
                self.assertEqual(os.listdir(os.fsencode(folder)), [name])
                self.assertEqual(len(vmm.restore(region.backend, given, relocate=True)), 1)
                os.remove(path)
                with vmm.Listener(given):
                    self.assertEqual(os.listdir(os.fsencode(folder)), [name])
            os.mkdir(path)
            for given in path, os.fsdecode(path), Path(os.fsdecode(path)):
                region.suspend("file", given)
                region.resume()
            os.rmdir(path)
            with self.raises(gpu_vmm.FileError, "No such file"):
                region.suspend("file", path)
        # The name is that of the locale.
        with mock.patch("os.fsencode", lambda path: path.encode("latin-1")):
            region.snapshot(f"{folder}/é")
        self.assertEqual(os.listdir(os.fsencode(folder)), [b"\xe9"])
        for wrong in 5, None, [folder]:
            with self.raises(TypeError, "path: expected a str, bytes or os.PathLike"):
                region.snapshot(wrong)
        with self.raises(gpu_vmm.InvalidArgument, "path: '\\ud800' cannot be encoded"):
            region.snapshot("\ud800")

    def test_several_regions_in_one_file(self):
        opened = backend()
        one, unit = region_of(opened, 1)
        other, _ = region_of(opened, 2)
        third = vmm.Region(opened, unit)
        third.map(0, one.physical(0))
        third.set_access(0, unit, 0, vmm.Access.READ_WRITE)
        path = f"{self.folder()}/snapshot"
        vmm.snapshot([one, other, third], path)
        again = vmm.restore(opened, path, relocate=True)
        self.assertEqual([again[at].read(at % 2 * unit, 1) for at in range(3)], [b"\1", b"\2", b"\1"])
        again[2].write(b"x")
        self.assertEqual((again[0].read(0, 1), one.read(0, 1)), (b"x", b"\1"))
        for wrong in [], [one, one]:
            with self.raises(gpu_vmm.InvalidArgument):
                vmm.snapshot(wrong, path)
        with self.raises(gpu_vmm.FileError):
            vmm.restore(opened, "/no/such/file")

    def folder(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        return made.name

    def test_banks(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        with vmm.BankedRegion(opened, 2 * unit) as banked:
            self.assertIsNone(banked.selected)
            with self.raises(gpu_vmm.NotMapped):
                banked.read(0, 1)
            memory = vmm.PhysicalMemory(opened, unit)
            memory.write(b"mine")
            front, back, own = banked.add(unit), banked.add(2 * unit), banked.add_physical([memory])
            address = banked.address
            for bank, contents in ((front, b"front"), (back, b"back")):
                banked.select(bank)
                banked.write(contents)
            banked.select(own)
            self.assertEqual((banked.read(0, 4), banked.selected), (b"mine", own))
            banked.select(front)
            self.assertEqual((banked.read(0, 5), banked.address), (b"front", address))
            banked.hide()
            self.assertIsNone(banked.selected)
            banked.remove(back)
            for kind, call in (
                (gpu_vmm.NotFound, lambda: banked.select(back)),
                (gpu_vmm.OutOfRange, lambda: banked.add(3 * unit)),
                (gpu_vmm.InvalidArgument, lambda: banked.add_physical([])),
                (gpu_vmm.OutOfRange, lambda: banked.read(0, 1 << 60)),
            ):
                with self.raises(kind):
                    call()


class Queues(Case):
    def test_copies_and_events(self):
        opened = backend()
        region, unit = region_of(opened, 1)
        with vmm.PinnedMemory(opened, 64) as pinned, vmm.CopyQueue(opened) as queue, vmm.Event(opened) as event:
            self.assertTrue(event.is_done)
            buffer = pinned.buffer()
            buffer[:6] = b"queued"
            queue.write(region, 10, pinned, 0, 6)
            queue.read(region, 10, pinned, 32, 6)
            queue.finish()
            self.assertEqual((region.read(10, 6), bytes(buffer[32:38]), len(pinned)), (b"queued", b"queued", 64))
            event.record()
            queue.hold(event)
            queue.read(region, 10, pinned, 40, 6)
            queue.record(event)
            event.hold()
            event.wait()
            self.assertEqual(bytes(buffer[40:46]), b"queued")
            event.wait()
            self.assertTrue(event.is_done)
            for kind, call in (
                (gpu_vmm.OutOfRange, lambda: queue.write(region, 0, pinned, 60, 6)),
                (gpu_vmm.OutOfRange, lambda: queue.write(region, unit, pinned, 0, 6)),
                (gpu_vmm.NoSuchDevice, lambda: vmm.Event(opened, 99)),
                (gpu_vmm.NoSuchDevice, lambda: vmm.CopyQueue(opened, 99)),
            ):
                with self.raises(kind):
                    call()
        buffer[0] = 1  # the buffer keeps the memory
        self.assertEqual(buffer[0], 1)


def handle_ctrl_c(case):
    """Makes SIGINT raise KeyboardInterrupt: a shell starts its background jobs with the signal ignored."""
    case.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))


class Closed(Case):
    def made(self):
        opened = backend()
        unit = vmm.reservation_unit(opened)
        return [
            vmm.PhysicalMemory(opened, unit), vmm.Region(opened, unit), vmm.BankedRegion(opened, unit), vmm.Event(opened),
            vmm.PinnedMemory(opened, 64), vmm.CopyQueue(opened),
        ]  # fmt: skip

    def test_a_closed_object_raises(self):
        memory, region, banked, event, pinned, queue = made = self.made()
        for one in made:
            self.assertFalse(one.closed)
            one.close()
            one.close()
            self.assertTrue(one.closed)
            self.assertIn("closed", repr(one))
        for call in (
            lambda: memory.size, memory.retain, lambda: memory.read(0, 1), lambda: region.address, lambda: region.grow(1),
            lambda: region.map(0, memory), lambda: region.view(), banked.hide, event.wait, pinned.buffer, queue.finish,
            region.suspend, lambda: region.on_backing_change(print),
        ):  # fmt: skip
            with self.raises(gpu_vmm.InvalidArgument, "closed"):
                call()

    def test_no_copies_and_one_init(self):
        opened = backend()
        for one in self.made():
            for make in copy.copy, copy.deepcopy, pickle.dumps:
                with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                    make(one)
            with self.assertRaisesRegex(TypeError, "exists already"):
                one.__init__(opened, 0 if isinstance(one, (vmm.Event, vmm.CopyQueue)) else 1)
            self.assertFalse(one.closed)
            half = type(one).__new__(type(one))
            self.assertTrue(half.closed)
            half.close()

    def test_closing_while_others_use_it(self):
        opened = backend()
        for _ in range(20):
            region, _ = region_of(opened, 1)

            def work(number):
                if number == 0:
                    return region.close()
                for _ in range(200):
                    region.read(0, 1 << 16)

            failures = in_threads(4, work)
            for failure in failures:
                self.assertIsInstance(failure, gpu_vmm.InvalidArgument)
                self.assertIn("closed", str(failure))

    def test_another_process_follows(self):
        opened = backend()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = f"{folder.name}/socket"
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, 8 * unit, vmm.Properties(handle_types=vmm.HandleTypes.FD))
        region.grow(unit)
        region.write(b"exporter")
        said = []
        listener = vmm.Listener(path)
        child = threading.Thread(
            target=lambda: said.append(
                self.script(
                    f"""
                    from gpu_vmm import InvalidArgument, vmm
                    followed = vmm.FollowedRegion(vmm.open({NAME!r}), {path!r}, reserve={8 * unit})
                    print(followed.read(0, 8).decode())
                    while followed.next(30) is not vmm.ExchangeEvent.RELEASE_REQUESTED:
                        followed.apply()
                        print(followed.size // {unit})
                        followed.write(b"importer", followed.size - 8)
                    followed.release()
                    print(followed.closed)
                    """
                )
            )
        )
        child.start()
        with listener.export(region) as exporter:
            exporter.wait_applied()
            self.assertFalse(exporter.publish())
            region.grow(4 * unit)
            self.assertTrue(exporter.publish())
            exporter.wait_applied()
            exporter.request_release()
            self.assertIs(exporter.wait_released(), vmm.ReleaseOutcome.RELEASED)
        child.join()
        listener.close()
        self.assertEqual((said, os.path.exists(path)), (["exporter\n4\nTrue\n"], False))
        self.assertEqual(region.read(4 * unit - 8, 8), b"importer")
        with vmm.Listener(path) as listener:
            for timeout, seconds in (0, "0 s"), (0.01, "0.01 s"), (0.25, "0.25 s"):
                with self.raises(gpu_vmm.TimedOut, f"no connection within {seconds}"):
                    listener.export(region, timeout)
            for wrong, kind in ("1", TypeError), (None, TypeError), (-1, gpu_vmm.InvalidArgument), (math.nan, gpu_vmm.InvalidArgument):
                with self.raises(kind, "timeout: "):
                    listener.export(region, wrong)
            with self.raises(gpu_vmm.TimedOut):
                vmm.FollowedRegion(opened, path, 0.01)
        with self.raises(gpu_vmm.NoListener, "no process listens there, or not yet"):
            vmm.FollowedRegion(opened, path, 0.01)

    def test_a_stale_socket_is_replaced(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        opened, path = backend(), f"{folder.name}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
            left.bind(path)
        with self.raises(gpu_vmm.StaleSocket, path):
            vmm.FollowedRegion(opened, path)
        with self.raises(gpu_vmm.StaleSocket, path):
            vmm.Listener(path)
        with vmm.Listener(path, replace_stale=True):
            with self.raises(gpu_vmm.DriverError, "the path exists"):
                vmm.Listener(path, replace_stale=True)
        self.assertFalse(os.path.exists(path))
        vmm.Listener(path, replace_stale=True).close()

    def test_a_signal_ends_each_wait(self):
        # The same process has both ends, since a wait needs no second process.
        handle_ctrl_c(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        opened, path = backend(), f"{folder.name}/socket"
        size = 2 * vmm.reservation_unit(opened)
        region = vmm.Region(opened, size, vmm.Properties(handle_types=vmm.HandleTypes.FD))
        region.grow(1)
        main, began = threading.main_thread().ident, []

        def interrupted(wait):
            timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
            began.append(time.monotonic())
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                wait()
            timer.join()
            self.assertLess(time.monotonic() - began[-1], 20)

        with vmm.Listener(path) as listener:
            interrupted(lambda: listener.export(region, 60))
            interrupted(lambda: vmm.FollowedRegion(opened, path, 60))
        with vmm.Listener(path) as listener:
            exported = []
            thread = threading.Thread(target=lambda: exported.append(listener.export(region)))
            thread.start()
            with vmm.FollowedRegion(opened, path) as followed:
                thread.join()
                with exported.pop() as exporter:
                    exporter.wait_applied()
                    interrupted(lambda: exporter.wait_released(60))
                    interrupted(lambda: followed.next(60))
                    region.grow(region.size + 1)
                    self.assertTrue(exporter.publish())
                    interrupted(lambda: exporter.wait_applied(60))
                    self.assertIs(followed.next(), vmm.ExchangeEvent.CHANGED)
                    self.assertEqual(repr(vmm.ExchangeEvent.CHANGED), "<ExchangeEvent.CHANGED: 1>")
                    self.assertIs(followed.next(0.25), vmm.ExchangeEvent.NONE)

    def test_a_signal_ends_a_wait_for_a_reader(self):
        handle_ctrl_c(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        opened, path = backend(), f"{folder.name}/socket"
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, 2 * unit, vmm.Properties(handle_types=vmm.HandleTypes.FD))
        region.grow(unit)
        main, progress, done = threading.main_thread().ident, [0], threading.Event()

        def watch():
            # The signal comes once a call waits: between two calls it would end a wait of no kind.
            seen = -1
            while progress[0] != seen:
                seen = progress[0]
                if done.wait(1):
                    return
            signal.pthread_kill(main, signal.SIGINT)

        def interrupted(wait):
            thread, began = threading.Thread(target=watch), time.monotonic()
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                wait()
            thread.join()
            return time.monotonic() - began

        def publish_until_full():
            while True:
                region.grow(2 * unit) if region.size == unit else region.shrink(unit)
                exporter.publish()
                progress[0] += 1

        with vmm.Listener(path) as listener:
            exported = []
            thread = threading.Thread(target=lambda: exported.append(listener.export(region)))
            thread.start()
            with vmm.FollowedRegion(opened, path) as followed:
                thread.join()
                self.addCleanup(done.set)
                with exported.pop() as exporter:
                    self.assertLess(interrupted(publish_until_full), 20)
                    self.assertLess(interrupted(exporter.request_release), 20)
                    # Both are sent once the other side reads.
                    events = set()
                    while vmm.ExchangeEvent.RELEASE_REQUESTED not in events:
                        events.add(followed.next(20))
                    self.assertEqual(events, {vmm.ExchangeEvent.CHANGED, vmm.ExchangeEvent.RELEASE_REQUESTED})

    def test_publishing_in_a_callback_does_not_wait(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        opened, path = backend(), f"{folder.name}/socket"
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, 2 * unit, vmm.Properties(handle_types=vmm.HandleTypes.FD))
        region.grow(unit)
        region.grow(2 * unit)
        refused = []

        def before(change):
            with self.raises(gpu_vmm.Busy):
                exporter.publish()
            refused.append(change.operation)

        number = region.on_backing_change(before)
        with vmm.Listener(path) as listener:
            exported = []
            thread = threading.Thread(target=lambda: exported.append(listener.export(region)))
            thread.start()
            with vmm.FollowedRegion(opened, path):
                thread.join()
                with exported.pop() as exporter:
                    region.shrink(unit)
                    region.remove_observer(number)
        self.assertEqual(refused, ["shrink"])

    def test_only_the_named_user_follows(self):
        opened, us = backend(), os.geteuid()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = f"{folder.name}/socket"
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, unit, vmm.Properties(handle_types=vmm.HandleTypes.FD))
        region.grow(unit)
        results = {}

        def note(side, work):
            try:
                work().close()
                results[side] = None
            except gpu_vmm.Error as error:
                results[side] = type(error)

        with vmm.Listener(path) as listener:
            for to, of, expected in (
                (us, us, (None, None)),
                (us + 1, us, (gpu_vmm.AccessDenied, gpu_vmm.PeerError)),
                (us, us + 1, (gpu_vmm.PeerError, gpu_vmm.AccessDenied)),
            ):
                export = threading.Thread(target=note, args=("export", lambda: listener.export(region, user=to)))
                export.start()
                note("follow", lambda: vmm.FollowedRegion(opened, path, user=of))
                export.join()
                self.assertEqual((results["export"], results["follow"]), expected)
            for wrong in (-1, 1 << 32, "root"):
                with self.assertRaises((gpu_vmm.InvalidArgument, TypeError)):
                    listener.export(region, 0.01, user=wrong)

    @unittest.skipUnless(NAME == "host", "the fake drivers share no memory between processes started like this")
    def test_another_process(self):
        opened = backend()
        shared = vmm.Properties(handle_types=vmm.HandleTypes.FD)
        unit = vmm.reservation_unit(opened)
        region = vmm.Region(opened, unit, shared)
        region.grow(unit)
        region.write(b"before")
        with region.offer() as offer:
            said = self.script(
                f"""
                from gpu_vmm import vmm
                region = vmm.Region.import_offer(vmm.open("host"), bytes.fromhex({bytes(offer).hex()!r}))
                print(region.read(0, 6).decode())
                region.write(b"after!")
                """
            )
        self.assertEqual((said, region.read(0, 6)), ("before\n", b"after!"))
        with self.raises(gpu_vmm.Busy):
            region.suspend()


if __name__ == "__main__":
    unittest.main()
