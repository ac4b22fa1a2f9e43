//! Questions about addresses to the whole process.

use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    Access, Address, AddressInfo, AddressRange, Backend, BackingStore, Bytes, DeviceId, Placement, Region, at,
};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

cases! { "at":
    /// An address in a region has the region's range and tag, and the mapping there with its memory, properties and access.
    address_in_a_region,
    /// An address between mappings, in a guard, of other code or of a region that has ended has no mapping or no region.
    address_without_memory,
    /// A region that grows behind its end, moves, is suspended or gets another tag is found as it is then.
    region_that_changes,
    /// An address in a pool has the block and its tag while it is allocated, and the page that is mapped there.
    address_in_a_pool,
    /// Threads find whole mappings while another thread maps and unmaps.
    threads_that_look,
}

/// Returns what is at an address of a region.
#[track_caller]
fn found(address: Address) -> AddressInfo {
    at(address).unwrap().expect("a region of this process")
}

/// Fails unless the registry has the mappings of a region, and no others.
#[track_caller]
pub(crate) fn agrees<B: Backend>(region: &Region<B>) {
    let mut end = Bytes(0);
    for mapping in region.mappings() {
        if end < mapping.offset {
            assert_eq!(found(region.address() + end).mapping, None, "at offset {end}");
        }
        end = mapping.offset + mapping.length;
        for offset in [mapping.offset, end - Bytes(1)] {
            let info = found(region.address() + offset);
            let seen = info.mapping.unwrap_or_else(|| panic!("nothing at offset {offset}: {info}"));
            let range = AddressRange { base: region.address() + mapping.offset, size: mapping.length };
            assert_eq!((seen.range, seen.memory), (range, mapping.memory.id()), "{info}");
            assert_eq!((seen.properties, seen.poisoned), (mapping.memory.properties(), mapping.poisoned));
            for device in (0..2).map(DeviceId).chain([DeviceId::HOST]) {
                assert_eq!(seen.access.get(device), region.access(offset, device), "{device} in {info}");
            }
        }
    }
    if end < region.reserved() {
        assert_eq!(found(region.address() + end).mapping, None, "behind the last mapping");
    }
}

fn address_in_a_region<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(8).tag("weights").build().unwrap();
    let (first, second) = (subject.piece(1), subject.piece(2));
    subject.open(&mut region, Bytes(0), &first);
    region.map(subject.granules(3), &second).unwrap();
    agrees(&region);
    let info = found(region.address() + subject.granules(4));
    assert_eq!((&*info.tag, info.region, info.vendor), ("weights", region.range(), subject.backend.vendor()));
    assert!(!info.is_pool && !info.suspended && !info.is_guard && info.block.is_none());
    assert!(info.mapping.unwrap().access.is_none());
    region.set_access(subject.granules(3), second.size(), subject.device, Access::Read).unwrap();
    agrees(&region);
    let text = found(region.address()).to_string();
    assert!(text.contains("\"weights\"") && text.contains(&region.range().to_string()), "{text}");
    region.unmap(Bytes(0), first.size(), idle()).unwrap();
    agrees(&region);
}

fn address_without_memory<B: TestKit>(subject: &Subject<B>) {
    let local = 0;
    assert_eq!(at(Address(0)).unwrap(), None);
    assert_eq!(at(Address((&raw const local).addr() as u64)).unwrap(), None);
    assert_eq!(at(Address(u64::MAX)).unwrap(), None);
    let region = subject.region(1).guarded().build().unwrap();
    let (address, end) = (region.address(), region.range().end());
    for (address, guard) in [(address - Bytes(1), true), (end, true), (address, false)] {
        let info = found(address);
        assert_eq!((info.is_guard, info.mapping), (guard, None), "{info}");
    }
    drop(region);
    // Another case may have a region there by now, which has not this one's guards.
    assert!(at(address).unwrap().is_none_or(|info| !info.is_guard));
}

fn region_that_changes<B: TestKit>(subject: &Subject<B>) {
    let base = subject.hole(4);
    let mut region = subject.region(1).at(Placement::Exact(base)).tag("first").build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    agrees(&region);
    let second = found(base + subject.units(1));
    assert_eq!((&*second.tag, second.region.base), ("first", base + subject.units(1)));
    let _behind = subject.region(1).at(Placement::Exact(base + region.reserved())).build().unwrap();
    let moved = region.grow_or_move(region.reserved() + Bytes(1), idle()).unwrap();
    assert_ne!(moved.address, base);
    agrees(&region);
    assert_eq!(at(base).unwrap(), None);
    region.set_tag("second");
    assert_eq!(&*found(region.address()).tag, "second");
    region.suspend(&BackingStore::nothing(), idle()).unwrap();
    let info = found(region.address());
    assert!(info.suspended && info.mapping.is_none(), "{info}");
    region.resume().unwrap();
    assert!(!found(region.address()).suspended);
    agrees(&region);
}

fn address_in_a_pool<B: TestKit>(subject: &Subject<B>) {
    let pool = Pool::builder(&subject.backend).device(subject.device).build().unwrap();
    let tagged = pool.tagged("activations").unwrap();
    for size in [Bytes(300), Bytes::kib(700), Bytes::mib(5)] {
        let block = tagged.alloc(size).unwrap();
        let last = block.address() + size - Bytes(1);
        let info = found(last);
        let inside = info.block.clone().unwrap();
        assert_eq!((inside.range.base, &*inside.tag, info.is_pool), (block.address(), "activations", true));
        assert_eq!(inside.range.size, block.capacity());
        let mapping = info.mapping.unwrap();
        assert!(mapping.range.contains(last), "{info}");
        assert_eq!(mapping.access.get(subject.device), RW);
        drop(block);
        assert_eq!(at(last).unwrap().and_then(|info| info.block), None);
    }
    let block = tagged.alloc(Bytes(300)).unwrap();
    let address = block.address();
    drop((pool, tagged));
    // The block keeps the memory, and the pool has ended.
    assert!(found(address).mapping.is_some());
    drop(block);
}

fn threads_that_look<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(4).build().unwrap();
    let (piece, address) = (subject.piece(3), region.address());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = || {
            let mut seen = [0; 2];
            while !ended.load(Ordering::Relaxed) {
                let info = found(address + subject.granules(2));
                seen[usize::from(info.mapping.is_some())] += 1;
                assert!(info.mapping.is_none_or(|mapping| mapping.memory == piece.id()
                    && mapping.range == AddressRange { base: address, size: piece.size() }));
            }
        };
        let lookers = [scope.spawn(looks), scope.spawn(looks)];
        for _ in 0..100 {
            subject.open(&mut region, Bytes(0), &piece);
            region.unmap(Bytes(0), piece.size(), idle()).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
        lookers.into_iter().for_each(|looker| looker.join().unwrap());
    });
}
