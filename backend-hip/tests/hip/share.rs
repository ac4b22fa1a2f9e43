//! Memory as a file descriptor.

use crate::rig::{Rig, ZERO, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{
    Backend, Bytes, Detail, Feature, Handle, MemoryCalls, Operation, Properties, Reservation,
};
use gpu_vmm_hip::{HipHandle, HipReservation};
use gpu_vmm_testkit::TestKit;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "share::an_import_is_the_same_memory", needs: Needs::Device, run: same_memory },
    Test {
        name: "share::what_was_not_made_for_it_is_not_exported",
        needs: Needs::Device,
        run: not_shareable,
    },
    Test {
        name: "share::a_failed_import_leaves_the_position_of_a_file",
        needs: Needs::Device,
        run: position_stays,
    },
    Test {
        name: "share::a_full_table_of_descriptors_is_the_systems_error",
        needs: Needs::Device,
        run: full_table,
    },
    Test { name: "share::descriptor_zero_can_be_imported", needs: Needs::Device, run: descriptor_zero },
    Test {
        name: "share::a_descriptor_of_something_else_is_an_error",
        needs: Needs::Device,
        run: something_else,
    },
    Test {
        name: "share::a_descriptor_of_another_size_is_an_error_with_both_sizes",
        needs: Needs::Device,
        run: other_size,
    },
    Test { name: "share::each_export_is_a_new_descriptor", needs: Needs::Device, run: new_descriptors },
    Test { name: "share::a_dma_buf_is_of_one_mapping", needs: Needs::Device, run: dma_buf },
];

fn shareable(rig: &Rig) -> impl Handle + use<> {
    // SAFETY: a unit.
    unsafe { rig.backend.create(rig.unit(), &Properties::on(ZERO).shareable()) }.unwrap()
}

/// Imports a descriptor and checks that the pattern is in its memory.
fn import_has(rig: &Rig, fd: BorrowedFd<'_>, seed: u64) {
    let unit = rig.unit();
    let mut reservation = rig.reserve(unit);
    // SAFETY: the descriptor is that of a unit, exported here.
    unsafe {
        let handle = rig.backend.import(fd, unit, &Properties::on(ZERO).shareable()).unwrap();
        rig.counts_import();
        assert_eq!(handle.size(), unit);
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        assert_eq!(rig.backend.count_wrong(ZERO, reservation.range().base, unit, seed).unwrap(), 0);
        reservation.unmap(Bytes::ZERO, unit).unwrap();
    }
}

/// Creates shareable memory with a pattern, mapped in an empty reservation of a unit.
fn patterned(rig: &Rig, reservation: &mut HipReservation, seed: u64) -> HipHandle {
    let unit = rig.unit();
    // SAFETY: the handle fits the empty reservation.
    let handle = unsafe {
        let handle = rig.backend.create(unit, &Properties::on(ZERO).shareable()).unwrap();
        reservation.map(Bytes::ZERO, &handle).unwrap();
        reservation.set_access(Bytes::ZERO, unit, &[read_write(ZERO)]).unwrap();
        handle
    };
    rig.writes_all(ZERO, reservation, Bytes::ZERO, unit, seed);
    handle
}

/// Exports shareable memory with a pattern.
fn exported(rig: &Rig, seed: u64) -> OwnedFd {
    let unit = rig.unit();
    let mut reservation = rig.reserve(unit);
    // SAFETY: one whole mapping, which no work uses when it is unmapped.
    unsafe {
        let handle = patterned(rig, &mut reservation, seed);
        reservation.unmap(Bytes::ZERO, unit).unwrap();
        handle.export().unwrap()
    }
}

fn same_memory(rig: &Rig) {
    let unit = rig.unit();
    let mut reservation = rig.reserve(unit);
    // SAFETY: one whole mapping, which no work uses when it is unmapped.
    unsafe {
        let handle = patterned(rig, &mut reservation, 21);
        let fd = handle.export().unwrap();
        import_has(rig, fd.as_fd(), 21);
        // The descriptor still belongs to the caller.
        import_has(rig, fd.as_fd(), 21);
        reservation.unmap(Bytes::ZERO, unit).unwrap();
    }
}

fn not_shareable(rig: &Rig) {
    let error = rig.create(ZERO, rig.unit()).export().expect_err("not created for it");
    assert!(
        matches!(error.detail(), Detail::Unsupported { .. }) && error.operation() == Operation::ExportMemory,
        "{error:?}"
    );
}

fn descriptor_zero(rig: &Rig) {
    let fd = exported(rig, 31);
    // SAFETY: standard input is saved, replaced by the exported descriptor for the import, and restored.
    unsafe {
        let aside = libc::dup(0);
        assert_eq!(libc::dup2(fd.as_raw_fd(), 0), 0);
        let zero = BorrowedFd::borrow_raw(0);
        let imported = rig.backend.import(zero, rig.unit(), &Properties::on(ZERO).shareable());
        rig.counts_import();
        if aside >= 0 {
            libc::dup2(aside, 0);
            drop(OwnedFd::from_raw_fd(aside));
        } else {
            libc::close(0);
        }
        drop(imported.unwrap());
    }
}

fn something_else(rig: &Rig) {
    const HIP: &str = "hipMemImportFromShareableHandle";
    let null = File::open("/dev/null").unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    // SAFETY: a text with its zero byte; the result is a new descriptor.
    let memory =
        unsafe { File::from_raw_fd(libc::memfd_create(c"no memory of HIP's".as_ptr(), libc::MFD_CLOEXEC)) };
    memory.set_len(rig.unit().0).unwrap();
    for (fd, call) in [
        (null.as_fd(), "lseek"),
        (file.as_fd(), "lseek"),
        (socket.as_fd(), HIP),
        (pipe.as_fd(), HIP),
        (memory.as_fd(), HIP),
    ] {
        // SAFETY: the import must fail, which the test checks; nothing is mapped.
        let answer = unsafe { rig.backend.import(fd, rig.unit(), &Properties::on(ZERO).shareable()) };
        let error = answer.expect_err("the descriptor has no memory of HIP's");
        assert_eq!(error.driver_error().map(|source| source.call), Some(call), "{error}");
    }
}

fn position_stays(rig: &Rig) {
    let mut file = File::open("/proc/self/exe").unwrap();
    for position in [0, 7] {
        file.seek(SeekFrom::Start(position)).unwrap();
        // SAFETY: the import must fail; nothing is mapped.
        let answer =
            unsafe { rig.backend.import(file.as_fd(), rig.unit(), &Properties::on(ZERO).shareable()) };
        assert!(answer.is_err());
        assert_eq!(file.stream_position().unwrap(), position);
    }
}

/// Nothing is wrong with the driver: the caller must close files, or raise the limit.
fn full_table(rig: &Rig) {
    let (memory, fd) = (shareable(rig), exported(rig, 8));
    // HIP keeps the descriptors that it opens for its first import.
    import_has(rig, fd.as_fd(), 8);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the structure alone.
    let filled = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let few = libc::rlimit { rlim_cur: limit.rlim_cur.min(512), ..limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few), 0);
        let filled: Vec<OwnedFd> = std::iter::from_fn(|| fd.try_clone().ok()).collect();
        // SAFETY: the import must fail; nothing is mapped.
        let imported = rig.backend.import(fd.as_fd(), rig.unit(), &Properties::on(ZERO).shareable());
        let exported = memory.export();
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        let error = imported.expect_err("no descriptor is left");
        assert_eq!(
            error.driver_error().map(|source| (source.call, source.code)),
            Some(("dup", libc::EMFILE.into())),
            "{error}"
        );
        assert!(exported.expect_err("no descriptor is left").driver_error().is_some());
        filled
    };
    drop(filled);
    drop(memory.export().unwrap());
    import_has(rig, fd.as_fd(), 8);
}

fn other_size(rig: &Rig) {
    let fd = exported(rig, 5);
    for said in [rig.units(2), rig.units(3)] {
        // SAFETY: the size is wrong on purpose; nothing is mapped.
        let answer = unsafe { rig.backend.import(fd.as_fd(), said, &Properties::on(ZERO).shareable()) };
        let text = answer.expect_err("it is not that large").to_string();
        assert!(text.contains(&rig.unit().to_string()) && text.contains(&said.to_string()), "{text}");
    }
    let memory = rig.units(2);
    // SAFETY: two units, exported at once.
    let larger =
        unsafe { rig.backend.create(memory, &Properties::on(ZERO).shareable()) }.unwrap().export().unwrap();
    // SAFETY: as above.
    let answer = unsafe { rig.backend.import(larger.as_fd(), rig.unit(), &Properties::on(ZERO).shareable()) };
    answer.expect_err("it is larger");
    import_has(rig, fd.as_fd(), 5);
}

/// Memory that was not created as shareable has a dma-buf too. It must not leak, as it does with HIP's own function.
fn dma_buf(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(3));
    // SAFETY: the handles are adjacent in the empty reservation, and no work uses them when they are unmapped.
    unsafe {
        for (place, count) in [(0, 1), (1, 2)] {
            reservation.map(rig.units(place), &rig.create(ZERO, rig.units(count))).unwrap();
            reservation.set_access(rig.units(place), rig.units(count), &[read_write(ZERO)]).unwrap();
        }
        rig.writes_all(ZERO, &reservation, Bytes::ZERO, rig.unit(), 61);
        let all = rig.backend.capabilities(ZERO).unwrap();
        assert!(all.iter().any(|one| one.feature == Feature::DmaBuf && one.available), "{all:?}");
        let fds = [(0, 1), (1, 2)]
            .map(|(place, count)| reservation.dma_buf(ZERO, rig.units(place), rig.units(count)).unwrap());
        for (fd, size) in fds.iter().zip([rig.unit(), rig.units(2)]) {
            assert!(fd.as_raw_fd() > 2 && libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) == libc::FD_CLOEXEC);
            assert_eq!(libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END), size.0 as i64);
        }
        import_has(rig, fds[0].as_fd(), 61);
        let error = reservation.dma_buf(ZERO, Bytes::ZERO, rig.units(3)).expect_err("two mappings");
        assert!(
            matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("one mapping")),
            "{error}"
        );
        reservation.unmap(Bytes::ZERO, rig.unit()).unwrap();
        reservation.unmap(rig.unit(), rig.units(2)).unwrap();
    }
}

fn new_descriptors(rig: &Rig) {
    let handle = shareable(rig);
    let fds: Vec<_> = (0..3).map(|_| handle.export().unwrap()).collect();
    let mut numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 3);
    for fd in &fds {
        // SAFETY: reads the flags of an open descriptor.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC, "closed on exec");
    }
}
