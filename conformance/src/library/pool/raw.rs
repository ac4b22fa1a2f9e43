//! Blocks that are identified by their addresses.

use super::{Hand, adds_up, alloc, is_empty, pool};
use crate::case::cases;
use crate::library::flights::own;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Bytes, Error, Operation};
use gpu_vmm_pool::PoolError;
use gpu_vmm_testkit::TestKit;

cases! { "pool":
    /// A block that the pool keeps is freed by its address, and the address is reused.
    kept_and_freed,
    /// An address that was freed already, an address inside of a block and an unknown address are different errors, and
    /// change nothing.
    wrong_addresses,
    /// A second free of an address is reported as such, even if the address was also freed long ago.
    freed_again_long_ago,
    /// A block that the pool keeps can be used on other streams, and can be freed behind a fence.
    kept_and_used_elsewhere,
    /// Blocks that the pool keeps are released with the pool's last clone.
    kept_to_the_end,
}

fn kept_and_freed<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    for size in [64, 70_000, 3 << 20] {
        let all: Vec<_> = (0..50).map(|_| pool.keep(alloc(&pool, Bytes(size))).unwrap()).collect();
        assert_eq!(adds_up(&pool).live_blocks, 50);
        assert!(all.iter().all(|address| pool.find(*address).is_some()));
        for address in &all {
            pool.free_at(*address).unwrap();
        }
        assert_eq!(adds_up(&pool).live, 0);
        let address = pool.keep(alloc(&pool, Bytes(size))).unwrap();
        assert!(all.contains(&address));
        pool.free_at(address).unwrap();
    }
    is_empty(&pool);
}

fn wrong_addresses<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let (base, owned) = (pool.keep(alloc(&pool, Bytes(5000))).unwrap(), alloc(&pool, Bytes::mib(3)));
    let not_a_block = |address, within| {
        for (answer, operation) in [
            (pool.free_at(address), Operation::Free),
            (pool.free_at_after(address, Hand::new().fence()), Operation::Free),
            (pool.record_use_at(address, super::DEFAULT), Operation::RecordUse),
        ] {
            assert_eq!(answer.as_ref().map_err(Error::operation), Err(operation));
            match answer.as_ref().map_err(Error::extension) {
                Err(Some(PoolError::NotABlock { address: reported, inside })) => {
                    assert_eq!((*reported, *inside), (address, within));
                }
                _ => panic!("{answer:?}"),
            }
        }
    };
    not_a_block(base + Bytes(8), Some(base));
    not_a_block(Address(4096), None);
    not_a_block(owned.address() + Bytes(1), Some(owned.address()));
    // A block that the caller owns must not be freed by its address.
    not_a_block(owned.address(), None);
    assert_eq!(adds_up(&pool).live_blocks, 2);
    pool.free_at(base).unwrap();
    for _ in 0..2 {
        let error = pool.free_at(base).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PoolError::FreedTwice { address, .. }) if *address == base),
            "{error}"
        );
        let error = pool.record_use_at(base, super::DEFAULT).unwrap_err();
        assert!(matches!(error.extension(), Some(PoolError::FreedTwice { .. })), "{error}");
        assert_eq!(error.operation(), Operation::RecordUse);
    }
    let again = pool.keep(alloc(&pool, Bytes(5000))).unwrap();
    assert_eq!(again, base);
    pool.free_at(again).unwrap();
    drop(owned);
    is_empty(&pool);
}

fn freed_again_long_ago<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let free = |size| {
        let address = pool.keep(alloc(&pool, Bytes(size))).unwrap();
        pool.free_at(address).unwrap();
        address
    };
    let address = free(5000);
    (1..512).for_each(|_| assert_eq!(free(5000), address));
    // Each of the sixteen lists gets one of these addresses, and forgets the oldest of its 1,024 entries.
    for _ in 0..700 {
        let blocks: Vec<_> = (0..16).map(|_| pool.keep(alloc(&pool, Bytes(512))).unwrap()).collect();
        blocks.into_iter().for_each(|block| pool.free_at(block).unwrap());
    }
    let error = pool.free_at(address).unwrap_err();
    assert!(matches!(error.extension(), Some(PoolError::FreedTwice { .. })), "{error}");
    is_empty(&pool);
}

fn kept_and_used_elsewhere<B: TestKit>(subject: &Subject<B>) {
    let own = own(subject);
    let pool = pool(subject);
    let hand = Hand::new();
    let (one, two) =
        (pool.keep(alloc(&pool, Bytes::mib(2))).unwrap(), pool.keep(alloc(&pool, Bytes::mib(4))).unwrap());
    pool.record_use_at(one, super::waits::named(&*own)).unwrap();
    pool.free_at(one).unwrap();
    pool.free_at_after(two, hand.fence()).unwrap();
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(adds_up(&pool).pending, 4 << 20, "the block with a fence does not wait");
    assert!(matches!(
        pool.free_at(two).as_ref().map_err(Error::extension),
        Err(Some(PoolError::FreedTwice { .. }))
    ));
    hand.set(Hand::DONE);
    is_empty(&pool);
}

fn kept_to_the_end<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free_here();
    let pool = pool(subject);
    let clone = pool.tagged("other").unwrap();
    let address = pool.keep(alloc(&clone, Bytes::mib(4))).unwrap();
    drop(pool);
    assert!(clone.find(address).is_some(), "the clone does not find the block");
    drop(clone);
    assert_eq!(subject.free_here(), free);
}
