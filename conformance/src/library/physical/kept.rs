//! Size, owner and bytes of a piece of memory.

use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Detail, Handle, PhysicalMemory, Vendor};
use gpu_vmm_testkit::{TestKit, handle_of};

cases! { "physical":
    /// A size is rounded up to the granularity, and the memory reports the rounded size.
    is_rounded,
    /// Memory reports its device and its export types as it was created with.
    properties_are_kept,
    /// Memory keeps its bytes while it is not mapped, whatever else is created and used meanwhile.
    bytes_stay_while_unmapped,
    /// Memory can be read and written without a region, mapped or not, and nothing leaks; offsets beyond its end are refused.
    bytes_without_a_region,
    /// Fresh memory holds zeros, also if the device has used and released it before.
    fresh_memory_is_zero,
    /// Memory that is created and never mapped leaks nothing, over 200 rounds.
    never_mapped,
}

fn is_rounded<B: TestKit>(subject: &Subject<B>) {
    for (size, granules) in [(Bytes(1), 1), (subject.granularity(), 1), (subject.granularity() + Bytes(1), 2)]
    {
        let memory = PhysicalMemory::create(&subject.backend, size, subject.properties()).unwrap();
        assert_eq!(memory.size(), subject.granules(granules), "for {size}");
    }
}

fn properties_are_kept<B: TestKit>(subject: &Subject<B>) {
    let own = subject.properties();
    for properties in [own, own.shareable()] {
        // Not every version supports sharing.
        let memory = or_skip(PhysicalMemory::create(&subject.backend, subject.granularity(), properties));
        assert_eq!((memory.device(), handle_of(&memory).properties()), (subject.device, properties));
        assert_eq!(handle_of(&memory).size(), memory.size());
    }
}

fn bytes_stay_while_unmapped<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(3);
    let mut region = subject.space(6).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    subject.write(&mut region, Bytes(0), memory.size(), 1);
    region.unmap(Bytes(0), memory.size(), idle()).unwrap();
    for seed in 2..6 {
        let other = subject.piece(3);
        subject.open(&mut region, Bytes(0), &other);
        subject.write(&mut region, Bytes(0), other.size(), seed);
        region.unmap(Bytes(0), other.size(), idle()).unwrap();
    }
    let elsewhere = subject.granules(3);
    subject.open(&mut region, elsewhere, &memory);
    subject.check(&region, elsewhere, memory.size(), 1);
}

fn bytes_without_a_region<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(2);
    let before = subject.free();
    let last = memory.size() - Bytes(5);
    memory.write(Bytes(3), b"first").unwrap();
    memory.write(last, b"last.").unwrap();
    let mut region = subject.space(2).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    for (offset, bytes) in [(Bytes(3), b"first"), (last, b"last.")] {
        let mut found = [[0; 5]; 2];
        memory.read(offset, &mut found[0]).unwrap();
        region.read(offset, &mut found[1]).unwrap();
        assert_eq!(found, [*bytes; 2]);
    }
    memory.write(last, &[]).unwrap();
    for (offset, length) in [(last, 6), (memory.size(), 1)] {
        refused!(memory.write(offset, &vec![0; length]), Detail::OutOfRange { .. }, memory.size());
        refused!(memory.read(offset, &mut vec![0; length]), Detail::OutOfRange { .. }, memory.size());
    }
    refused!(memory.write(Bytes(u64::MAX), &[0]), Detail::Overflow { .. });
    let copy = subject.piece(1);
    copy.copy_from(Bytes(8), &memory, last, Bytes(5)).unwrap();
    let mut found = [0; 5];
    copy.read(Bytes(8), &mut found).unwrap();
    assert_eq!(&found, b"last.");
    refused!(copy.copy_from(Bytes(8), &memory, last, Bytes(6)), Detail::OutOfRange { .. }, memory.size());
    refused!(copy.copy_from(copy.size(), &memory, last, Bytes(1)), Detail::OutOfRange { .. }, copy.size());
    drop((region, copy));
    assert_eq!(subject.free(), before);
}

/// No driver guarantees this; a pool that reuses memory must clear it itself.
fn fresh_memory_is_zero<B: TestKit>(subject: &Subject<B>) {
    if subject.backend.vendor() == Vendor::Hip {
        skip("the contents of fresh memory on AMD's devices are unknown");
    }
    let length = subject.granules(4);
    for _ in 0..3 {
        let mut region = subject.space(4).build().unwrap();
        for _ in 0..2 {
            region.grow_to(region.end() + subject.granules(2)).unwrap();
        }
        let mut bytes = vec![1; length.0 as usize];
        region.read(Bytes(0), &mut bytes).unwrap();
        let zeros = vec![0; bytes.len()];
        assert!(bytes == zeros, "some of {length} is not zero");
        region.fill(Bytes(0), length, 0xff).unwrap();
    }
}

fn never_mapped<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    for _ in 0..200 {
        let small = subject.piece(1);
        let large = subject.piece(5);
        drop((small, large));
    }
    assert_eq!(subject.free(), before);
}
