//! Rule 8, the descriptors that memory is shared by.

use crate::case::cases;
use crate::library::sharing::{import, import_of, shareable};
use crate::library::tools::{has, idle, mapped, told, write};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Bytes, Detail, DeviceId, Error, Feature, PhysicalMemory, Vendor};
use gpu_vmm_testkit::TestKit;
use rustix::io::{FdFlags, fcntl_getfd};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

cases! { "share":
    /// What is exported can be imported in the same process: another handle of the same memory, which can go first or last.
    exported_and_imported,
    /// Memory that was not created as shareable is not exported, and the error says why.
    export_must_be_asked_for,
    /// Memory can be exported just where the device's capabilities say so, and where it cannot they say why.
    as_the_capabilities_say,
    /// Each export is a descriptor of its own, above the standard streams and closed by exec.
    each_export_is_new,
    /// A descriptor alone holds the memory, when every handle and mapping of it is gone.
    a_descriptor_holds_memory,
    /// The same descriptor can be imported twice.
    one_descriptor_imported_twice,
    /// Exporting what was imported is refused with the reason, or gives a descriptor of the same memory.
    an_import_is_exported_or_refused,
    /// A descriptor of something that is no device's memory is an error, and stays as it is.
    no_memory_behind_a_descriptor,
    /// A size that is zero or no multiple of the granularity, or a device that is not there, is refused before the driver
    /// hears of it.
    wrong_size_or_device,
    /// Memory of which another size was told is refused when it is imported, or at the latest when it is mapped.
    another_size_than_the_memorys,
    /// Where a driver says whose memory it is, a descriptor of one device's is not taken for another's.
    another_devices_memory,
    /// Descriptor 0 is a descriptor like any other.
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
        assert!(has(subject, &two, SEED), "what is left has the memory");
    }
}

fn export_must_be_asked_for<B: TestKit>(subject: &Subject<B>) {
    let error = subject.memory(1).export().unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("shareable")),
        "{error}"
    );
}

fn as_the_capabilities_say<B: TestKit>(subject: &Subject<B>) {
    let told = told(subject, Feature::FileDescriptor);
    let properties = subject.properties().shareable();
    let done = PhysicalMemory::create(&subject.backend, subject.granularity(), properties)
        .and_then(|memory| memory.export());
    match done.map_err(Error::into_detail) {
        Ok(_) => assert!(told.available, "it can be done, and {told:?}"),
        Err(Detail::Unsupported { reason, .. }) => {
            assert!(!told.available && !told.note.is_empty() && !reason.is_empty(), "{reason}, and {told:?}");
        }
        Err(error) => panic!("{error}"),
    }
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
    assert!(!one.is_same_as(&two), "each import is a hold of its own");
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
            assert_ne!(subject.backend.vendor(), Vendor::Cuda, "CUDA's driver was seen to refuse it");
            drop((memory, imported));
            let again = or_skip(import(subject, fd, subject.device, subject.unit()));
            assert!(has(subject, &mapped(subject, &[&again]), SEED));
        }
        Err(Detail::Unsupported { reason, .. }) => {
            assert!(reason.contains("import"), "{reason}")
        }
        Err(error) => panic!("it says neither yes nor no: {error}"),
    }
}

fn no_memory_behind_a_descriptor<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    // Ends the case where this version cannot import at all.
    drop(import_of(subject, export(&memory), &memory));
    let (reads, writes) = std::io::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let file = rustix::fs::memfd_create("no memory of a device", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, memory.size().0).unwrap();
    for (what, fd) in [("a pipe", reads.as_fd()), ("/dev/null", null.as_fd()), ("a memfd", file.as_fd())] {
        let answer = import(subject, fd, memory.device(), memory.size());
        assert!(
            matches!(answer.as_ref().map_err(Error::detail), Err(Detail::Driver { .. })),
            "{what}: {answer:?}"
        );
        fcntl_getfd(fd).unwrap();
    }
    drop(writes);
    // The device can be used as before.
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

/// In a process of its own, since standard input is lost.
#[allow(unsafe_code)]
fn descriptor_zero<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    write(subject, &mut mapped(subject, &[&memory]), SEED);
    // SAFETY: nothing here reads the standard input whose number this takes.
    assert_eq!(unsafe { libc::dup2(export(&memory).as_raw_fd(), 0) }, 0);
    let imported = import_of(subject, std::io::stdin(), &memory);
    assert!(has(subject, &mapped(subject, &[&imported]), SEED));
    // SAFETY: as above; what comes next gets that number.
    unsafe { libc::close(0) };
    let exported = export(&memory);
    assert!(exported.as_raw_fd() > 0, "an export takes no standard stream's number");
    assert!(has(subject, &mapped(subject, &[&import_of(subject, exported, &memory)]), SEED));
}

fn another_size_than_the_memorys<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 2);
    for units in [1, 3] {
        let Ok(imported) = import(subject, export(&memory), subject.device, subject.units(units)) else {
            continue;
        };
        let mut region = subject.region(4).build().unwrap();
        assert!(region.map(Bytes(0), &imported).is_err(), "{units} units were told, and it has two");
        region.close(idle()).unwrap();
    }
}

fn another_devices_memory<B: TestKit>(subject: &Subject<B>) {
    let (_, other) = subject.two_devices();
    let memory = shareable(subject, 1);
    match import(subject, export(&memory), other, memory.size()) {
        Ok(_) => assert_ne!(subject.backend.vendor(), Vendor::Cuda, "it was taken for another device's"),
        Err(error) => assert!(matches!(error.detail(), Detail::Mismatch { .. }), "{error}"),
    }
}
