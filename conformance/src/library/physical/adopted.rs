//! Memory that other code of the process has created and mapped, here by the driver's own calls.
#![allow(unsafe_code)] // calls into drivers

use crate::case::cases;
use crate::library::tools::{assert_names, idle, refused};
use crate::subject::{RW, Subject, or_skip};
use gpu_vmm_core::{Address, BackingStore, Bytes, Detail, ErrorKind, PhysicalMemory, Properties, Result};
use gpu_vmm_testkit::TestKit;
use gpu_vmm_testkit::raw::abi::{self, AccessDesc, Code, Location, Prop};
use gpu_vmm_testkit::raw::{self, Driver};
use std::ptr::null_mut;

cases! { "physical":
    /// Memory that other code has mapped is the same memory in a region, with the properties that the driver reports, and lives
    /// after the other code has unmapped and released it.
    adopted_outlives_its_creator,
    /// Memory adopted twice is released once for each time, and what other code still has mapped stays its own.
    adopted_twice,
    /// A region with adopted memory is not suspended, unless it may leave the memory in place.
    adopted_is_not_suspended,
    /// Nothing is adopted at an address of a plain allocation, of the host, of reserved addresses or of a region of this backend.
    not_adopted,
}

/// Memory of other code, mapped at an address.
struct Theirs {
    driver: Box<dyn Driver>,
    handle: Option<u64>,
    at: u64,
    reserved: usize,
    size: usize,
    is_mapped: bool,
}

/// Adopts the memory at an address.
fn adopt<B: TestKit>(subject: &Subject<B>, address: u64) -> Result<PhysicalMemory<B>> {
    // SAFETY: no other thread of the case unmaps memory.
    unsafe { PhysicalMemory::adopt(&subject.backend, Address(address)) }
}

/// Ends the case as skipped if the backend adopts nothing.
fn needs_adoption<B: TestKit>(subject: &Subject<B>) {
    match adopt(subject, 0).map_err(|error| (error.kind(), error)) {
        Err((ErrorKind::NotMapped, _)) => {}
        Err((_, error)) => drop(or_skip::<PhysicalMemory<B>>(Err(error))),
        Ok(memory) => panic!("address 0 has {memory:?}"),
    }
}

impl Theirs {
    /// Creates and maps `granules` granules of the chosen device's memory, which the device may read and write.
    fn new<B: TestKit>(subject: &Subject<B>, granules: u64, handle_types: i32) -> Self {
        let driver = raw::below(&subject.backend, subject.device, None).unwrap();
        let size = subject.granules(granules).0 as usize;
        let location = Location { kind: abi::DEVICE, id: subject.device.0 as i32 };
        let (kind, win32, reserved) = (abi::PINNED, null_mut(), subject.units(granules).0 as usize);
        let prop =
            Prop { kind, handle_types, location, win32, compression: 0, rdma: 0, usage: 0, reserved: [0; 4] };
        let desc = AccessDesc { location, flags: abi::RW };
        let (mut at, mut handle) = (0, 0);
        // SAFETY: the pointers are valid for their types, and the numbers are those of the documentation.
        let codes = unsafe {
            [
                driver.address_reserve(&raw mut at, reserved, 0, 0, 0),
                driver.create(&raw mut handle, size, &raw const prop, 0),
                driver.map(at, size, 0, handle, 0),
                driver.set_access(at, size, &raw const desc, 1),
            ]
        };
        assert_eq!(codes, [Code::SUCCESS; 4]);
        Self { driver, handle: Some(handle), at, reserved, size, is_mapped: true }
    }

    fn release(&mut self) {
        if let Some(handle) = self.handle.take() {
            // SAFETY: the handle is released once.
            assert_eq!(unsafe { self.driver.release(handle) }, Code::SUCCESS);
        }
    }

    fn unmap(&mut self) {
        if std::mem::take(&mut self.is_mapped) {
            // SAFETY: the mapping is unmapped once, and no work uses it.
            assert_eq!(unsafe { self.driver.unmap(self.at, self.size) }, Code::SUCCESS);
        }
    }

    fn write(&self, bytes: &[u8]) {
        // SAFETY: the memory is mapped and larger.
        let code = unsafe { self.driver.copy_from_host(self.at, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(code, Code::SUCCESS);
    }

    fn read(&self) -> [u8; 6] {
        let mut bytes = [0; 6];
        // SAFETY: the memory is mapped and larger.
        let code = unsafe { self.driver.copy_to_host(bytes.as_mut_ptr().cast(), self.at, bytes.len()) };
        assert_eq!(code, Code::SUCCESS);
        bytes
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.unmap();
        self.release();
        // SAFETY: nothing is mapped there any more.
        let code = unsafe { self.driver.address_free(self.at, self.reserved) };
        assert!(code == Code::SUCCESS || std::thread::panicking());
    }
}

fn adopted_outlives_its_creator<B: TestKit>(subject: &Subject<B>) {
    needs_adoption(subject);
    let before = subject.free();
    for (types, shared) in [(abi::NO_HANDLE, false), (abi::DESCRIPTOR, true)] {
        let own = Properties::on(subject.device);
        if shared && PhysicalMemory::create(&subject.backend, Bytes(1), own.shareable()).is_err() {
            continue;
        }
        let mut theirs = Theirs::new(subject, 3, types);
        theirs.write(b"theirs");
        let memory = adopt(subject, theirs.at + theirs.size as u64 - 1).unwrap();
        assert_eq!(memory.properties(), if shared { own.shareable() } else { own });
        assert_eq!((memory.size(), memory.holders()), (subject.granules(3), 1));
        theirs.release();
        let mut region = subject.space(6).build().unwrap();
        subject.open(&mut region, subject.granules(2), &memory);
        let mut bytes = [0; 6];
        region.read(subject.granules(2), &mut bytes).unwrap();
        assert_eq!(&bytes, b"theirs");
        region.write(subject.granules(2), b"shared").unwrap();
        assert_eq!(&theirs.read(), b"shared");
        drop(theirs);
        region.read(subject.granules(2), &mut bytes).unwrap();
        assert_eq!(&bytes, b"shared");
        drop(memory);
        assert_eq!(subject.free_here(), before[subject.device.0 as usize] - subject.granules(3));
        drop(region);
        assert_eq!(subject.free(), before);
    }
}

fn adopted_twice<B: TestKit>(subject: &Subject<B>) {
    needs_adoption(subject);
    let before = subject.free();
    let theirs = Theirs::new(subject, 2, abi::NO_HANDLE);
    theirs.write(b"theirs");
    let (one, other) = (adopt(subject, theirs.at).unwrap(), adopt(subject, theirs.at + 1).unwrap());
    assert!(!one.is_same_as(&other) && one.id() != other.id());
    let mut region = subject.space(4).build().unwrap();
    subject.open(&mut region, Bytes(0), &one);
    subject.open(&mut region, subject.granules(2), &other);
    region.write(Bytes(0), b"of one").unwrap();
    let mut bytes = [0; 6];
    region.read(subject.granules(2), &mut bytes).unwrap();
    assert_eq!(&bytes, b"of one");
    drop((one, other, region));
    assert_eq!(&theirs.read(), b"of one");
    drop(theirs);
    assert_eq!(subject.free(), before);
}

fn adopted_is_not_suspended<B: TestKit>(subject: &Subject<B>) {
    needs_adoption(subject);
    let theirs = Theirs::new(subject, 1, abi::NO_HANDLE);
    theirs.write(b"theirs");
    let mut region = subject.space(2).build().unwrap();
    region.map_with_access(Bytes(0), &[adopt(subject, theirs.at).unwrap()], subject.device, RW).unwrap();
    let store = BackingStore::host(&subject.backend).unwrap();
    let error = region.suspend(&store, idle()).unwrap_err();
    assert!(matches!(error.detail(), Detail::StillReferenced { .. }), "{error}");
    assert_names(&error, &["other code of this process".to_owned()]);
    let mut list = Vec::new();
    let suspended = region.suspend_into(&store, idle(), &mut list).unwrap();
    assert_eq!((suspended.memory, suspended.shared, list.len()), (Bytes(0), subject.granules(1), 0));
    assert_eq!(&theirs.read(), b"theirs");
    region.resume().unwrap();
    let mut bytes = [0; 6];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(&bytes, b"theirs");
}

fn not_adopted<B: TestKit>(subject: &Subject<B>) {
    needs_adoption(subject);
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    for address in [region.address(), region.address() + subject.granularity()] {
        refused!(@AdoptMemory adopt(subject, address.0), Detail::Unsupported { .. }, address, region.range());
    }
    let mut theirs = Theirs::new(subject, 1, abi::NO_HANDLE);
    theirs.unmap();
    let local = 0u64;
    let plain = subject.backend.allocate_plain(subject.device, subject.granularity());
    let nothing =
        [Some(theirs.at), Some((&raw const local).addr() as u64), plain.as_ref().ok().map(|at| at.0)];
    for address in nothing.into_iter().flatten() {
        let error = adopt(subject, address).unwrap_err();
        assert!(matches!(error.detail(), Detail::NoMemoryAt { .. }), "{error}");
        assert_names(&error, &[Address(address).to_string()]);
    }
    if let Ok(at) = plain {
        // SAFETY: it was allocated so, and no work uses it.
        unsafe { subject.backend.free_plain(subject.device, at, subject.granularity()) }.unwrap();
    }
}
