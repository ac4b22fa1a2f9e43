//! Regions that cannot be suspended, and stores that cannot hold them. The region is unchanged.
#![allow(unsafe_code)] // imports memory, and limits the process's files

use super::{check_varied, directory, pinned, resume, ring, suspend, varied};
use crate::case::cases;
use crate::library::tools::{has, idle, refused, write};
use crate::subject::{RW, Subject, or_skip, skip};
use gpu_vmm_core::{
    BackingStore, Bytes, Detail, DeviceId, PhysicalMemory, Properties, Region, RegionState, StagingRing,
};
use gpu_vmm_testkit::TestKit;
use std::os::fd::AsFd;

cases! { "suspend":
    /// Suspending exported memory is refused before anything happens, even if the descriptor is closed.
    exported_memory,
    /// Suspending imported memory is refused before anything happens.
    imported_memory,
    /// Suspending memory that is also held by a clone or mapped in another region is refused until that is released.
    held_memory,
    /// Suspending a region whose dma-bufs were exported is refused.
    memory_with_a_dma_buf,
    /// A store with too little room is refused with the numbers; a store with exactly enough room is accepted.
    a_full_store,
    /// A directory that does not exist is an error with its path, and the region is unchanged.
    no_such_directory,
    /// A file that cannot be written completely is an error, and the region is unchanged.
    @isolated a_full_disk,
    /// A store or a ring of another backend is refused.
    a_foreign_store,
    /// A store of size zero, or in no directory, is refused.
    a_store_of_no_size,
}

/// Fails if the region was changed.
fn is_active<B: TestKit>(region: &Region<B>) {
    assert_eq!(region.state(), RegionState::Active);
    assert!(!region.mapped().is_zero());
}

fn exported_memory<B: TestKit>(subject: &Subject<B>) {
    let properties = subject.properties().shareable();
    let memory = or_skip(PhysicalMemory::create(&subject.backend, subject.granularity(), properties));
    drop(or_skip(memory.export()));
    let mut region = varied(subject);
    subject.open(&mut region, subject.granules(3), &memory);
    drop(memory);
    refused!(
        region.suspend(&BackingStore::nothing(), idle()),
        Detail::StillReferenced { .. },
        "has been exported",
        subject.granules(3),
    );
    is_active(&region);
    region.unmap(subject.granules(3), subject.granularity(), idle()).unwrap();
    suspend(&mut region, &pinned(subject, super::MEMORY));
    resume(&mut region);
    check_varied(subject, &mut region);
}

fn imported_memory<B: TestKit>(subject: &Subject<B>) {
    let properties = subject.properties().shareable();
    let memory = or_skip(PhysicalMemory::create(&subject.backend, subject.granularity(), properties));
    let descriptor = or_skip(memory.export());
    // SAFETY: the descriptor was exported from memory of this size and these properties.
    let imported = unsafe {
        PhysicalMemory::import(&subject.backend, descriptor.as_fd(), memory.size(), memory.properties())
    };
    let imported = or_skip(imported);
    crate::leaks::counts_import();
    assert!(memory.is_exported() && !imported.is_exported());
    let mut region = subject.space(1).build().unwrap();
    subject.open(&mut region, Bytes(0), &imported);
    drop(imported);
    refused!(
        region.suspend(&BackingStore::nothing(), idle()),
        Detail::StillReferenced { .. },
        "belongs to another process"
    );
    is_active(&region);
}

fn held_memory<B: TestKit>(subject: &Subject<B>) {
    let store = pinned(subject, super::MEMORY);
    let mut region = varied(subject);
    let clone = region.mapping_at(subject.granules(8)).unwrap().memory.clone();
    let at = subject.granules(8);
    refused!(region.suspend(&store, idle()), Detail::StillReferenced { .. }, "also held by a clone", at);
    let mut other = subject.space(2).build().unwrap();
    other.map(Bytes(0), &clone).unwrap();
    drop(clone);
    refused!(region.suspend(&store, idle()), Detail::StillReferenced { .. }, "by another region", at);
    refused!(other.suspend(&store, idle()), Detail::StillReferenced { .. });
    is_active(&region);
    assert_eq!(store.free(), store.capacity());
    drop(other);
    suspend(&mut region, &store);
    resume(&mut region);
    check_varied(subject, &mut region);
}

fn memory_with_a_dma_buf<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(1).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    let made = region.dma_bufs(Bytes(0), region.end());
    match made {
        Ok(made) => {
            drop(made);
            let error = region.suspend(&BackingStore::nothing(), idle()).unwrap_err();
            assert!(matches!(error.detail(), Detail::StillReferenced { .. }), "{error}");
            is_active(&region);
        }
        // A refused export has no effect.
        Err(_) => drop(suspend(&mut region, &BackingStore::nothing())),
    }
}

fn a_full_store<B: TestKit>(subject: &Subject<B>) {
    let store = pinned(subject, super::MEMORY - 1);
    let (needed, free) = (subject.granules(super::MEMORY), subject.granules(super::MEMORY - 1));
    let mut region = varied(subject);
    refused!(region.suspend(&store, idle()), Detail::BackingStoreFull { .. }, needed, free);
    check_varied(subject, &mut region);
    assert_eq!(store.free(), store.capacity());
    let mut other = subject.space(1).build().unwrap();
    other.grow_to(subject.granularity()).unwrap();
    let store = pinned(subject, super::MEMORY);
    suspend(&mut other, &store);
    refused!(region.suspend(&store, idle()), Detail::BackingStoreFull { .. }, needed, free);
    resume(&mut other);
    suspend(&mut region, &store);
    resume(&mut region);
    check_varied(subject, &mut region);
}

fn no_such_directory<B: TestKit>(subject: &Subject<B>) {
    let directory = directory().join(format!("gpu-vmm-no-such-directory-{}", std::process::id()));
    let store = BackingStore::file(&directory, ring(subject));
    let mut region = varied(subject);
    let error = region.suspend(&store, idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::File { .. }), "{error}");
    for part in ["suspend", "open", &directory.display().to_string()] {
        assert!(error.to_string().contains(part), "{error} does not say {part}");
    }
    check_varied(subject, &mut region);
}

/// Limits the size of this process's files, and makes a write beyond it an error instead of a signal.
fn limit_files(most: u64) {
    // SAFETY: the case has a process of its own; this ignores a signal and sets a limit.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

fn a_full_disk<B: TestKit>(subject: &Subject<B>) {
    let store = BackingStore::file(directory(), ring(subject));
    let mut region = varied(subject);
    limit_files(subject.granules(4).0);
    let error = region.suspend(&store, idle()).unwrap_err();
    limit_files(libc::RLIM_INFINITY);
    assert!(matches!(error.detail(), Detail::File { .. }), "{error}");
    let text = error.to_string();
    assert!(["fallocate", "write"].iter().any(|call| text.contains(call)), "{text}");
    check_varied(subject, &mut region);
    suspend(&mut region, &store);
    resume(&mut region);
    check_varied(subject, &mut region);
}

fn a_foreign_store<B: TestKit>(subject: &Subject<B>) {
    let Some(other) = subject.target.foreign() else { skip("there is no other backend") };
    let ring = StagingRing::new(&other, 1, Bytes::kib(64)).unwrap();
    let stores = [BackingStore::pinned(&other, subject.granules(4)).unwrap(), BackingStore::pageable(ring)];
    let mut region = subject.space(1).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    write(subject, &mut region, 1);
    for store in &stores {
        refused!(region.suspend(store, idle()), Detail::ForeignHandle { .. }, other.vendor());
        assert!(has(subject, &region, 1));
    }
    let mut foreign = Region::builder(&other).reserve(other.granularity().bytes()).build().unwrap();
    let theirs = other.granularity().bytes();
    let memory = PhysicalMemory::create(&other, theirs, Properties::on(DeviceId(0))).unwrap();
    foreign.map(Bytes(0), &memory).unwrap();
    foreign.set_access(Bytes(0), theirs, DeviceId(0), RW).unwrap();
    drop(memory);
    refused!(foreign.suspend(&pinned(subject, 1), idle()), Detail::ForeignHandle { .. });
    foreign.suspend(&stores[0], idle()).unwrap();
}

fn a_store_of_no_size<B: TestKit>(subject: &Subject<B>) {
    refused!(BackingStore::pinned(&subject.backend, Bytes(0)), Detail::ZeroSize);
    refused!(@KeepContents BackingStore::files([""; 0], ring(subject)), Detail::ZeroSize);
}
