//! Blocks at addresses that the caller chooses.

use super::{adds_up, alloc, check, is_empty, page, pool, start, write};
use crate::case::cases;
use crate::library::flights::own;
use crate::library::pool::waits::named;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Backend, Bytes, ErrorKind};
use gpu_vmm_pool::{Block, Occupant, Pool, PoolError};
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// A freed block's addresses are allocated again by their number, for small and large sizes, and by another stream.
    freed_addresses_again,
    /// Addresses that the pool has not reserved are reserved for a chosen block, and its memory can be used.
    unreserved_addresses,
    /// A request for addresses that are in use names the block, the tag's addresses, or the memory outside of the pool.
    taken_addresses_are_named,
    /// Memory that work on another stream still uses is not handed out at its address before the work is done.
    chosen_memory_waits_for_work,
}

#[track_caller]
fn at<B: Backend>(pool: &Pool<B>, address: Address, size: Bytes) -> Block<B> {
    let block = pool.request(size).at(address).alloc().unwrap();
    assert_eq!((block.address(), block.size()), (address, size));
    block
}

/// What is at the addresses of a request.
#[track_caller]
fn occupant<B: Backend>(pool: &Pool<B>, address: Address, size: Bytes) -> Occupant {
    let error = pool.request(size).at(address).alloc().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressTaken, "{error}");
    match error.extension() {
        Some(PoolError::AddressTaken { requested, occupant, .. }) if requested.base == address => {
            Occupant::clone(occupant)
        }
        _ => panic!("{error}"),
    }
}

fn freed_addresses_again<B: TestKit>(subject: &Subject<B>) {
    let streams = [(); 2].map(|()| own(subject));
    let base = pool(subject);
    let page = page(&base);
    for size in [Bytes(5000), Bytes::kib(300), page, Bytes(page.0 * 3 + 512)] {
        let block = base.request(size).stream(named(&*streams[0])).alloc().unwrap();
        let address = Address(block.address().0 / 512 * 512);
        drop(block);
        let block = at(&base, address, size);
        write(subject, &block, size.0);
        drop(block);
        let request = base.request(size).stream(named(&*streams[1])).at(address);
        let block = request.alloc().unwrap();
        write(subject, &block, size.0 + 1);
        check(subject, &block, size.0 + 1);
        adds_up(&base);
    }
    is_empty(&base);
}

fn unreserved_addresses<B: TestKit>(subject: &Subject<B>) {
    let base = pool(subject);
    let page = page(&base);
    let units = page.0.div_ceil(subject.units(1).0);
    let place = Address(subject.hole(units * 8).0.next_multiple_of(page.0));
    let tagged = base.tagged("chosen").unwrap();
    let first = at(&tagged, place + page, Bytes(3000));
    let (beside, other) = (at(&tagged, place + page + Bytes(4096), Bytes(300)), alloc(&tagged, Bytes(300)));
    let blocks = [(&first, 1), (&beside, 2), (&other, 3)];
    blocks.iter().for_each(|(block, seed)| write(subject, block, *seed));
    blocks.iter().for_each(|(block, seed)| check(subject, block, *seed));
    assert!(base.find(first.address()).is_some_and(|info| &*info.tag == "chosen"));
    drop((first, beside, other));
    is_empty(&base);
}

fn taken_addresses_are_named<B: TestKit>(subject: &Subject<B>) {
    let base = pool(subject);
    let page = page(&base);
    let tagged = base.tagged("weights").unwrap();
    let block = alloc(&tagged, Bytes(page.0 * 2));
    let found = occupant(&tagged, block.address() + page, page);
    assert!(matches!(&found, Occupant::Block { range, tag }
        if range.base == block.address() && range.size == block.capacity() && &**tag == "weights"));
    let found = occupant(&base, block.address(), page);
    assert!(matches!(&found, Occupant::Reservation { range, tag }
        if range.contains(block.address()) && &**tag == "weights"));
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.units(1)).unwrap();
    let found = occupant(&base, region.address(), Bytes(512));
    assert!(matches!(found, Occupant::OutsidePool(_)));
    drop(block);
    is_empty(&base);
}

fn chosen_memory_waits_for_work<B: TestKit>(subject: &Subject<B>) {
    let [one, other] = [(); 2].map(|()| own(subject));
    let base = pool(subject);
    let page = page(&base);
    let block = base.request(page).stream(named(&*one)).alloc().unwrap();
    let address = block.address();
    start(subject, &*one, &block, 4);
    drop(block);
    let block = base.request(page).stream(named(&*other)).at(address).alloc().unwrap();
    write(subject, &block, 5);
    check(subject, &block, 5);
    drop(block);
    is_empty(&base);
}
