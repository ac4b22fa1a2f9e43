//! The contents of freed memory. The library gives no access to it. So these cases read it through a descriptor that the
//! library does not know, like a process that keeps memory it should have released.

use crate::case::cases;
use crate::library::sharing::{import_of, shareable};
use crate::library::tools::{has, idle, mapped, write};
use crate::subject::{Subject, or_skip};
use gpu_vmm_core::{BackingStore, BankedRegion, Bytes, Handle, POISON, PhysicalMemory, Region};
use gpu_vmm_testkit::{TestKit, handle_of};

cases! { "guard":
    /// Memory of a guarded region is filled with poison once it is freed: by unmapping, shrinking, suspending, closing, dropping,
    /// or releasing it later.
    freed_memory_is_poisoned,
    /// Memory with another handle clone or mapping keeps its contents, and is poisoned when the last of them is dropped.
    what_is_held_is_not_freed,
    /// Memory that moves with its region keeps its contents, and is poisoned when it leaves the region.
    moved_and_then_freed,
    /// Memory that a swap moves from a guarded region to another one keeps its contents there, and is poisoned when it is
    /// freed.
    swapped_and_then_freed,
    /// A bank that was selected in a guarded region keeps its contents while it is hidden, and is poisoned after it is removed.
    a_set_that_was_shown,
    /// Exported memory is not poisoned, because another process may use it.
    exported_memory_is_left_alone,
    /// Imported memory is not poisoned, because it belongs to another process.
    imported_memory_is_left_alone,
    /// Memory that was never in a guarded region is freed without being poisoned.
    without_a_guard,
    /// Memory that growth adds is poisoned when it is freed, each allocation separately.
    a_piece_of_several,
}

const SEED: u64 = 70;

/// Maps the same memory through an import that the library does not connect with it.
fn beside<B: TestKit>(subject: &Subject<B>, memory: &PhysicalMemory<B>) -> Region<B> {
    let fd = or_skip(handle_of(memory).export());
    mapped(subject, &[&import_of(subject, fd, memory)])
}

/// Returns true if all of a region contains poison.
fn is_poison<B: TestKit>(region: &Region<B>) -> bool {
    let mut bytes = vec![0; region.end().to_usize().unwrap()];
    region.read(Bytes(0), &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == POISON)
}

/// Creates a guarded region that alone holds memory with the pattern, and a second mapping of that memory that the library
/// does not know.
fn two_mappings<B: TestKit>(subject: &Subject<B>) -> (Region<B>, Region<B>) {
    let memory = shareable(subject, 1);
    let mut region = subject.region(1).guarded().build().unwrap();
    subject.open(&mut region, Bytes(0), &memory);
    write(subject, &mut region, SEED);
    let beside = beside(subject, &memory);
    assert!(has(subject, &beside, SEED), "both are the same memory");
    (region, beside)
}

/// The ways in which memory leaves a region.
#[derive(Clone, Copy, Debug)]
enum Free {
    Unmap,
    Shrink,
    Suspend,
    Close,
    Drop,
    Later,
}

/// Frees all memory of a region. Returns the region if it still exists.
fn free<B: TestKit>(mut region: Region<B>, how: Free) -> Option<Region<B>> {
    match how {
        Free::Unmap => region.unmap(Bytes(0), region.end(), idle()).unwrap(),
        Free::Shrink => assert_eq!(region.shrink_to(Bytes(0), idle()).unwrap().end, Bytes(0)),
        Free::Suspend => {
            region.suspend(&BackingStore::nothing(), idle()).unwrap();
            region.resume().unwrap();
            region.unmap(Bytes(0), region.end(), idle()).unwrap();
        }
        Free::Close => {
            region.close(idle()).unwrap();
            return None;
        }
        Free::Drop => return None,
        Free::Later => {
            let (backend, size) = (region.backend().clone(), region.mapped());
            region.release_later();
            assert_eq!(backend.deferred().collect(&backend).unwrap(), size);
            return None;
        }
    }
    Some(region)
}

fn freed_memory_is_poisoned<B: TestKit>(subject: &Subject<B>) {
    for how in [Free::Unmap, Free::Shrink, Free::Suspend, Free::Close, Free::Drop, Free::Later] {
        let (region, beside) = two_mappings(subject);
        let left = free(region, how);
        assert!(is_poison(&beside), "{how:?}");
        // The region stays usable, and its next memory is unaffected.
        if let Some(mut region) = left {
            region.grow_to(subject.granularity()).unwrap();
            write(subject, &mut region, SEED + 1);
            assert!(has(subject, &region, SEED + 1) && is_poison(&beside), "{how:?}");
        }
    }
    let logged = subject.backend.drop_log().take_last();
    assert!(logged.is_none(), "{logged:?}");
}

fn what_is_held_is_not_freed<B: TestKit>(subject: &Subject<B>) {
    let (region, beside) = two_mappings(subject);
    let held = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    let alias = mapped(subject, &[&held]);
    region.close(idle()).unwrap();
    assert!(
        has(subject, &alias, SEED) && has(subject, &beside, SEED),
        "another region has the memory mapped"
    );
    alias.close(idle()).unwrap();
    assert!(has(subject, &beside, SEED), "a clone of the handle exists");
    drop(held);
    assert!(is_poison(&beside));
}

fn moved_and_then_freed<B: TestKit>(subject: &Subject<B>) {
    let (mut region, beside) = two_mappings(subject);
    region.grow_or_move(subject.units(2), idle()).unwrap();
    subject.check(&region, Bytes(0), subject.unit(), SEED);
    assert!(has(subject, &beside, SEED));
    region.unmap(Bytes(0), subject.unit(), idle()).unwrap();
    assert!(is_poison(&beside));
}

fn swapped_and_then_freed<B: TestKit>(subject: &Subject<B>) {
    let (mut region, gone) = two_mappings(subject);
    let memory = shareable(subject, 1);
    let mut plain = mapped(subject, &[&memory]);
    write(subject, &mut plain, SEED + 1);
    let come = beside(subject, &memory);
    drop(memory);
    region.swap_all(&mut plain, idle()).unwrap();
    assert!(has(subject, &plain, SEED) && has(subject, &region, SEED + 1));
    plain.swap_all(&mut region, idle()).unwrap();
    assert!(has(subject, &region, SEED) && has(subject, &plain, SEED + 1));
    // Both allocations have been in the guarded region by now.
    plain.close(idle()).unwrap();
    assert!(is_poison(&come) && has(subject, &region, SEED) && has(subject, &gone, SEED));
    region.close(idle()).unwrap();
    assert!(is_poison(&gone));
}

fn a_set_that_was_shown<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let beside = beside(subject, &memory);
    let mut banked = BankedRegion::build(subject.region(1).guarded()).unwrap();
    let [one, other] = [memory, subject.memory(1)].map(|memory| banked.add_bank_of(vec![memory]).unwrap());
    banked.select(one, idle()).unwrap();
    banked.write_pattern(subject.device, Bytes(0), subject.unit(), SEED).unwrap();
    banked.select(other, idle()).unwrap();
    assert!(has(subject, &beside, SEED), "the bank is hidden, not freed");
    banked.select(one, idle()).unwrap();
    let kept = banked.remove_bank(one, idle()).unwrap();
    assert!(has(subject, &beside, SEED), "the caller holds the memory");
    drop(kept);
    assert!(is_poison(&beside));
}

fn exported_memory_is_left_alone<B: TestKit>(subject: &Subject<B>) {
    let (region, beside) = two_mappings(subject);
    let fd = or_skip(region.mapping_at(Bytes(0)).unwrap().memory.export());
    region.close(idle()).unwrap();
    assert!(has(subject, &beside, SEED));
    drop(fd);
}

fn imported_memory_is_left_alone<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let mut own = mapped(subject, &[&memory]);
    write(subject, &mut own, SEED);
    let mut region = subject.region(1).guarded().build().unwrap();
    let imported = import_of(subject, or_skip(handle_of(&memory).export()), &memory);
    subject.open(&mut region, Bytes(0), &imported);
    drop(imported);
    region.close(idle()).unwrap();
    assert!(has(subject, &own, SEED));
}

fn without_a_guard<B: TestKit>(subject: &Subject<B>) {
    let memory = shareable(subject, 1);
    let mut region = mapped(subject, &[&memory]);
    write(subject, &mut region, SEED);
    let beside = beside(subject, &memory);
    drop(memory);
    region.close(idle()).unwrap();
    assert!(has(subject, &beside, SEED));
}

fn a_piece_of_several<B: TestKit>(subject: &Subject<B>) {
    // Skips the case if such memory is not supported.
    drop(shareable(subject, 1));
    let builder = subject.region(4).guarded().memory(subject.properties().shareable());
    let mut region = builder.build().unwrap();
    for units in [1, 3] {
        region.grow_to(subject.units(units)).unwrap();
    }
    write(subject, &mut region, SEED);
    let others: Vec<Region<B>> = region.mappings().map(|mapping| beside(subject, mapping.memory)).collect();
    let _ = region.shrink_to(subject.unit(), idle()).unwrap();
    assert!(has(subject, &region, SEED) && has(subject, &others[0], SEED), "the first allocation stays");
    assert!(is_poison(&others[1]));
    region.close(idle()).unwrap();
    assert!(is_poison(&others[0]));
}
