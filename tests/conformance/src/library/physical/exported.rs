//! Memory as a file descriptor, in one process.
#![allow(unsafe_code)] // importing takes a promise of what the descriptor is

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{Bytes, Error, Feature, Physical, Properties, Workbench};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

cases! { "physical":
    /// Memory that was exported and imported again is the same memory, for as long as one of the two handles lives.
    exported_and_imported,
    /// Each export is a descriptor of its own, and each import of either a further handle of the same memory.
    exported_and_imported_twice,
    /// A descriptor alone keeps the memory and its bytes.
    a_descriptor_keeps_the_bytes,
    /// Memory can be exported just where the device's capabilities say so, and where they do not they say why.
    as_the_capabilities_say,
    /// Memory that was not created as shareable is not exported.
    export_must_be_asked_for,
    /// Importing with a size of zero, or one that is no multiple of the granularity, or for a device that there is not, is refused.
    imported_with_a_wrong_size,
}

/// Shareable memory of the chosen device and its properties, or the end of the case where there is none.
fn shareable<B: Workbench>(subject: &Subject<B>) -> (Physical<B>, Properties) {
    let properties = subject.properties().shareable();
    (or_skip(Physical::create(&subject.backend, subject.granules(2), properties)), properties)
}

/// Imports what was exported just now.
fn import<B: Workbench>(subject: &Subject<B>, fd: &OwnedFd) -> Physical<B> {
    let properties = subject.properties().shareable();
    // SAFETY: the descriptors here are all of `shareable`'s memory.
    let imported = unsafe { Physical::import(&subject.backend, fd.as_fd(), subject.granules(2), properties) };
    let imported = or_skip(imported);
    crate::leaks::counts_import();
    imported
}

fn exported_and_imported<B: Workbench>(subject: &Subject<B>) {
    let (memory, _) = shareable(subject);
    let fd = or_skip(memory.export());
    let imported = import(subject, &fd);
    drop(fd);
    let mut region = subject.space(4).build().unwrap();
    let (length, second) = (memory.size(), memory.size());
    subject.open(&mut region, Bytes(0), &memory);
    subject.open(&mut region, second, &imported);
    subject.write(&mut region, Bytes(0), length, 8);
    subject.check(&region, second, length, 8);
    drop(memory);
    region.unmap(Bytes(0), length, idle()).unwrap();
    subject.check(&region, second, length, 8);
}

fn exported_and_imported_twice<B: Workbench>(subject: &Subject<B>) {
    let (memory, _) = shareable(subject);
    let (one, other) = (or_skip(memory.export()), or_skip(memory.export()));
    assert_ne!(one.as_raw_fd(), other.as_raw_fd());
    let all = [import(subject, &one), import(subject, &other), memory];
    drop((one, other));
    assert!(!all[0].is_same_as(&all[1]), "two handles of the driver's");
    let mut region = subject.space(6).build().unwrap();
    let length = subject.granules(2);
    for (piece, place) in all.iter().zip(0..) {
        subject.open(&mut region, subject.granules(2 * place), piece);
    }
    for writer in 0..3 {
        subject.write(&mut region, subject.granules(2 * writer), length, writer);
        for reader in 0..3 {
            subject.check(&region, subject.granules(2 * reader), length, writer);
        }
    }
}

fn a_descriptor_keeps_the_bytes<B: Workbench>(subject: &Subject<B>) {
    let (memory, _) = shareable(subject);
    let fd = or_skip(memory.export());
    let mut region = subject.space(4).build().unwrap();
    let length = memory.size();
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), length, 3);
    drop(memory);
    region.unmap(Bytes(0), length, idle()).unwrap();
    // Whoever takes free memory now does not get this.
    let other = subject.piece(2);
    subject.open(&mut region, length, &other);
    subject.write(&mut region, length, length, 4);
    subject.open(&mut region, Bytes(0), &import(subject, &fd));
    subject.check(&region, Bytes(0), length, 3);
}

fn as_the_capabilities_say<B: Workbench>(subject: &Subject<B>) {
    let all = subject.backend.capabilities(subject.device).unwrap();
    let told = all.iter().find(|capability| capability.feature == Feature::FileDescriptor).unwrap();
    let properties = subject.properties().shareable();
    let done = Physical::create(&subject.backend, subject.granularity(), properties)
        .and_then(|memory| memory.export());
    match done {
        Ok(_) => assert!(told.available, "it can be done, and {told:?}"),
        Err(Error::Unsupported { reason, .. }) => {
            assert!(!told.available && !told.note.is_empty() && !reason.is_empty(), "{reason}, and {told:?}");
        }
        Err(error) => panic!("{error}"),
    }
}

fn export_must_be_asked_for<B: Workbench>(subject: &Subject<B>) {
    refused!(subject.piece(1).export(), Error::Unsupported { .. });
}

fn imported_with_a_wrong_size<B: Workbench>(subject: &Subject<B>) {
    let (memory, properties) = shareable(subject);
    let fd = or_skip(memory.export());
    let count = subject.backend.devices().len() as u32;
    let none = Properties::on(gpu_vmm_core::DeviceId(count)).shareable();
    let import = |size, properties| {
        // SAFETY: what is not the memory's is refused before a driver sees it, which this case is about.
        unsafe { Physical::import(&subject.backend, fd.as_fd(), size, properties) }
    };
    refused!(import(Bytes(0), properties), Error::ZeroSize { .. });
    let odd = memory.size() - Bytes(1);
    refused!(import(odd, properties), Error::Unaligned { what: "size", .. }, format!("{:#x}", odd.0));
    refused!(import(memory.size(), none), Error::NoSuchDevice { .. }, count);
}
