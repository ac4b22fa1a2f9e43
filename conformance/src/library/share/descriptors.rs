//! Rule 8: the file descriptors by which memory is shared.

use crate::case::cases;
use crate::library::sharing::{import, import_of, shareable};
use crate::library::tools::{has, idle, mapped, write};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, PhysicalMemory, Vendor};
use gpu_vmm_testkit::TestKit;
use rustix::io::{FdFlags, fcntl_getfd};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

cases! { "share":
    /// Exported memory can be imported in the same process as a second handle of the same memory, and either handle can be
    /// dropped first.
    exported_and_imported,
    /// Exporting memory that was not created as shareable is refused, and the error says why.
    export_must_be_asked_for,
    /// Each export returns a new descriptor, above the standard streams and close-on-exec.
    each_export_is_new,
    /// A descriptor alone keeps the memory after all handles and mappings are gone.
    a_descriptor_holds_memory,
    /// The same descriptor can be imported twice.
    one_descriptor_imported_twice,
    /// Exporting an import is refused with the reason, or returns a descriptor of the same memory.
    an_import_is_exported_or_refused,
    /// Importing a descriptor that is not of device memory is an error, and the descriptor stays open.
    no_memory_behind_a_descriptor,
    /// An import with a size that is zero or not a multiple of the granularity, or with a device that does not exist, is
    /// refused before a driver call.
    wrong_size_or_device,
    /// An import with a wrong size is refused, or at the latest mapping it is refused.
    another_size_than_the_memorys,
    /// If the driver knows the memory's device, importing it for another device is refused.
    another_devices_memory,
    /// Descriptor 0 works like any other descriptor.
    @isolated descriptor_zero,
}

const SEED: u64 = 300;

fn export<B: TestKit>(memory: &PhysicalMemory<B>) -> OwnedFd {
    or_skip(memory.export())
}

fn exported_and_imported<B: TestKit>(subject: &Subject<B>) {
    for first_goes in [true, false] {
        let memory = shareable(subject, 2);
        let imported = import_of(subject, export(&memory), &memory);
        assert_eq!(imported.size(), memory.size());
        assert_eq!(imported.device(), memory.device());
        let (mut one, mut two) = (mapped(subject, &[&memory]), mapped(subject, &[&imported]));
        write(subject, &mut one, SEED);
        assert!(has(subject, &two, SEED) && !has(subject, &two, SEED + 1));
        if first_goes {
            drop((one, memory));
        } else {
            drop((std::mem::replace(&mut two, one), imported));
        }
        assert!(has(subject, &two, SEED), "the remaining handle has lost the memory");
    }
}

fn export_must_be_asked_for<B: TestKit>(subject: &Subject<B>) {
    let error = subject.memory(1).export().unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "expected Unsupported, not: {error}");
}

fn each_export_is_new<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let exported = [(); 3].map(|()| export(&memory));
    let mut numbers = exported.each_ref().map(AsRawFd::as_raw_fd);
    numbers.sort_unstable();
    assert!(numbers[0] > 2 && numbers[0] < numbers[1] && numbers[1] < numbers[2], "{numbers:?}");
    for fd in &exported {
        assert_eq!(fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
    }
    let [_, _, last] = exported;
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    assert!(has(subject, &mapped(subject, &[&import_of(subject, last, &memory)]), SEED));
}

fn a_descriptor_holds_memory<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let (device, size) = (memory.device(), memory.size());
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    let fd = export(&memory);
    drop(memory);
    write(subject, &mut mapped(subject, &[&subject.memory(1)]), SEED + 1);
    let imported = or_skip(import(subject, fd, device, size));
    assert!(has(subject, &mapped(subject, &[&imported]), SEED));
}

fn one_descriptor_imported_twice<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let fd = export(&memory);
    let [one, two] = [(); 2].map(|()| import_of(subject, &fd, &memory));
    assert!(!one.is_same_as(&two), "both imports are the same handle");
    let (mut one, two) = (mapped(subject, &[&one]), mapped(subject, &[&two]));
    write(subject, &mut one, SEED);
    drop(one);
    assert!(has(subject, &two, SEED) && has(subject, &mapped(subject, &[&memory]), SEED));
}

fn an_import_is_exported_or_refused<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let imported = import_of(subject, export(&memory), &memory);
    write(subject, &mut mapped(subject, &[&imported]), SEED);
    match imported.export().map_err(Error::into_detail) {
        Ok(fd) => {
            assert_ne!(
                subject.backend.vendor(),
                Vendor::Cuda,
                "CUDA's driver refused this when the case was written"
            );
            drop((memory, imported));
            let again = or_skip(import(subject, fd, subject.device, subject.unit()));
            assert!(has(subject, &mapped(subject, &[&again]), SEED));
        }
        Err(Detail::Unsupported { reason, .. }) => {
            assert!(reason.contains("import"), "{reason}")
        }
        Err(error) => panic!("neither exported nor unsupported: {error}"),
    }
}

fn no_memory_behind_a_descriptor<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    // Skips the case if this version cannot import at all.
    drop(import_of(subject, export(&memory), &memory));
    let (reads, writes) = std::io::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let file = rustix::fs::memfd_create("no memory of a device", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, memory.size().0).unwrap();
    for (what, fd) in [("a pipe", reads.as_fd()), ("/dev/null", null.as_fd()), ("a memfd", file.as_fd())] {
        let answer = import(subject, fd, memory.device(), memory.size()).map(drop);
        assert!(
            matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Driver { .. })),
            "{what}: expected an error of the driver, not: {answer:?}"
        );
        fcntl_getfd(fd).unwrap();
    }
    drop(writes);
    // The device still works.
    write(subject, &mut mapped(subject, &[&memory]), SEED);
}

fn wrong_size_or_device<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let fd = export(&memory);
    let import = |device, size| import(subject, &fd, device, size).unwrap_err();
    let error = import(subject.device, Bytes(0));
    assert!(matches!(error.detail(), Detail::ZeroSize), "{error}");
    let error = import(subject.device, memory.size() - Bytes(1));
    assert!(matches!(error.detail(), Detail::Unaligned { .. }), "{error}");
    let error = import(DeviceId(99), memory.size());
    assert!(matches!(error.detail(), Detail::NoSuchDevice { device: DeviceId(99), .. }), "{error}");
}

/// In a process of its own, since it replaces standard input.
#[allow(unsafe_code)]
fn descriptor_zero<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    // SAFETY: nothing here reads standard input.
    assert_eq!(unsafe { libc::dup2(export(&memory).as_raw_fd(), 0) }, 0);
    let imported = import_of(subject, std::io::stdin(), &memory);
    assert!(has(subject, &mapped(subject, &[&imported]), SEED));
    // SAFETY: as above; the export below must not reuse that number.
    unsafe { libc::close(0) };
    let exported = export(&memory);
    assert!(exported.as_raw_fd() > 0, "an export has the number of a standard stream");
    assert!(has(subject, &mapped(subject, &[&import_of(subject, exported, &memory)]), SEED));
}

fn another_size_than_the_memorys<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 2);
    for units in [1, 3] {
        let Ok(imported) = import(subject, export(&memory), subject.device, subject.units(units)) else {
            continue;
        };
        let mut region = subject.region(4).build().unwrap();
        assert!(region.map(Bytes(0), &imported).is_err(), "a handle of two units was mapped as {units}");
        region.close(idle()).unwrap();
    }
}

fn another_devices_memory<B: TestKit>(subject: &Subject<B>) {
    let (_, other) = subject.two_devices();
    let memory = shareable(subject, 1);
    match import(subject, export(&memory), other, memory.size()) {
        Ok(_) => {
            assert_ne!(subject.backend.vendor(), Vendor::Cuda, "the memory was imported for another device")
        }
        Err(error) => assert!(matches!(error.detail(), Detail::Mismatch { .. }), "{error}"),
    }
}
