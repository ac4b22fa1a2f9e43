//! The kinds of memory, and what can be done with it beside mapping it for devices: what the capabilities say of each is
//! what happens. What is there works; what is not is refused with a reason, and nothing is taken.
//!
//! | file | subject |
//! |---|---|
//! | `memory` | the host's memory, flags, granularities |
//! | `addresses` | memory of a larger granularity, and the addresses that it comes to |
//! | `handles` | as what memory leaves the process |
//! | `host` | the CPU, which is given access and is no device |

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

/// How much a case takes of such memory: some granules.
fn some<B: TestKit>(subject: &Subject<B>, properties: &Properties) -> Bytes {
    Bytes(3 * subject.backend.granularity_of(Operation::QueryGranularity, properties).unwrap().bytes().0)
}

/// Such memory in a region of its own, which the chosen device may read and write.
fn mapped<B: TestKit>(subject: &Subject<B>, properties: Properties) -> (PhysicalMemory<B>, Region<B>) {
    let size = some(subject, &properties);
    let memory = PhysicalMemory::create(&subject.backend, size, properties).unwrap();
    assert_eq!(memory.size(), size);
    let builder = Region::builder(&subject.backend).memory(properties);
    let mut region = builder.reserve(Bytes(size.0 * 2)).build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    (memory, region)
}

/// Such memory can be used: in one piece, and by a region that grows with it.
fn works<B: TestKit>(subject: &Subject<B>, properties: Properties) -> PhysicalMemory<B> {
    let (memory, mut region) = mapped(subject, properties);
    let size = memory.size();
    region.grow_to(Bytes(2 * size.0)).unwrap();
    assert_eq!(region.access(size, subject.device), RW);
    let grown = region.mapping_at(size).unwrap().memory.properties();
    assert_eq!(grown, memory.properties(), "what a region grows with is the same");
    for seed in [SEED, SEED + 1] {
        subject.write(&mut region, Bytes(0), Bytes(2 * size.0), seed);
        subject.check(&region, Bytes(0), Bytes(2 * size.0), seed);
    }
    memory
}

/// There is no such memory: the error has a reason, no driver has given any, and no region is made to grow with it.
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
    assert_eq!(subject.free(), free, "nothing is taken");
}
