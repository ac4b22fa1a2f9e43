//! The memory types, and their uses other than mapping for devices: the behavior must agree with the reported capabilities.
//! Available features work; others are refused with a reason, and no memory is taken.

mod addresses;
mod handles;
mod host;
mod memory;

use crate::case::Case;
use crate::library::tools::assert_names;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Bytes, Detail, Operation, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [memory::cases(), addresses::cases(), handles::cases(), host::cases()].concat()
}

const SEED: u64 = 700;

/// The size of memory that a case uses: three granules of this type.
fn some<B: TestKit>(subject: &Subject<B>, properties: &Properties) -> Bytes {
    Bytes(3 * subject.backend.granularity_of(Operation::QueryGranularity, properties).unwrap().bytes().0)
}

/// Creates memory with these properties, and maps it in a region of its own that the chosen device may read and write.
fn mapped<B: TestKit>(subject: &Subject<B>, properties: Properties) -> (PhysicalMemory<B>, Region<B>) {
    let size = some(subject, &properties);
    let memory = PhysicalMemory::create(&subject.backend, size, properties).unwrap();
    assert_eq!(memory.size(), size);
    let builder = Region::builder(&subject.backend).memory(properties);
    let mut region = builder.reserve(Bytes(size.0 * 2)).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    (memory, region)
}

/// Checks that memory with these properties is usable, as one piece and as memory that a region grows by. Returns the piece.
fn works<B: TestKit>(subject: &Subject<B>, properties: Properties) -> PhysicalMemory<B> {
    let (memory, mut region) = mapped(subject, properties);
    let size = memory.size();
    region.grow_to(Bytes(2 * size.0)).unwrap();
    assert_eq!(region.access(size, subject.device), RW);
    let grown = region.mapping_at(size).unwrap().memory.properties();
    assert_eq!(grown, memory.properties(), "the region grew by memory with other properties");
    for seed in [SEED, SEED + 1] {
        subject.write(&mut region, Bytes(0), Bytes(2 * size.0), seed);
        subject.check(&region, Bytes(0), Bytes(2 * size.0), seed);
    }
    memory
}

/// Checks that such memory is refused with a reason, both when it is created and when a region would grow by it, and that
/// none is taken.
fn refused<B: TestKit>(subject: &Subject<B>, properties: Properties) {
    let free = subject.free();
    let size = subject.granules(3);
    let grown = || {
        Region::builder(&subject.backend).memory(properties).reserve(size).build()?.grow_to(size).map(drop)
    };
    let created = PhysicalMemory::create(&subject.backend, size, properties).map(drop);
    for answer in [created, grown()] {
        let error = answer.unwrap_err();
        assert!(
            matches!(error.detail(), Detail::Unsupported { reason, .. } if !reason.is_empty()),
            "{error}"
        );
        assert_names(&error, &["not supported".to_owned()]);
    }
    assert_eq!(subject.free(), free, "the refused calls took memory");
}
