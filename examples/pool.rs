//! Allocations of all sizes from one pool: allocate, free, find, use several streams, and read the statistics.
//!
//! ```text
//! cargo run --example pool
//! ```
#![allow(unsafe_code)] // the compiler cannot check which memory work on a stream uses

use gpu_vmm::pool::Pool;
use gpu_vmm::testkit::TestKit;
use gpu_vmm::{AnyBackend, Backend, Bytes, Detail, DeviceId, Result, Stream};

const DEVICE: DeviceId = DeviceId(0);
/// The alignment that every block has at least.
const ANY: Bytes = Bytes(256);

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    // The pool holds no memory before the first request. A clone is the same pool, for another thread or owner.
    let pool = Pool::builder(&backend).device(DEVICE).budget(Bytes::mib(512)).build()?;

    alloc_and_free(&pool)?;
    another_stream(&backend, &pool)?;
    what_does_not_work(&pool)?;

    // Free memory serves the next request, or returns to the driver.
    let given_back = pool.trim(Bytes::ZERO)?;
    println!("{given_back} returned to the driver: {}", pool.stats());
    assert_eq!((pool.stats().live, pool.stats().kept), (0, 0));
    Ok(())
}

/// Blocks are owned: dropping one frees it.
fn alloc_and_free<B: Backend>(pool: &Pool<B>) -> Result<()> {
    // A block belongs to the stream whose work uses it, here the default stream. Freed memory serves the next request of the
    // same stream at once.
    let sizes = [Bytes(1000), Bytes::kib(48), Bytes::mib(3), Bytes::mib(100)];
    let mut blocks = Vec::new();
    for size in sizes {
        let block = pool.alloc(size)?;
        println!("{size} at {}", block.address());
        assert!(block.address().is_aligned_to(ANY));
        blocks.push(block);
    }
    println!("{}", pool.stats());
    let requested: Bytes = sizes.into_iter().sum();
    assert_eq!(pool.stats().live, requested.0);

    // `find` returns the block for any address in it.
    let inside = blocks[2].address() + Bytes::mib(1);
    if let Some(found) = pool.find(inside) {
        println!("{inside} is {} into the block at {}", found.offset, found.base);
        assert_eq!((found.base, found.offset), (blocks[2].address(), Bytes::mib(1)));
    } else {
        unreachable!("{inside} lies in a live block");
    }

    // The same request again needs no driver call.
    blocks.clear();
    let before = pool.stats().driver_calls;
    let again = pool.alloc(Bytes::mib(100))?;
    assert_eq!(pool.stats().driver_calls, before);
    println!("{} again, at {}, without a driver call", again.size(), again.address());

    // Code that keeps only addresses frees by address.
    let address = pool.keep(again)?;
    pool.free_at(address)
}

/// The pool does not reuse a block that a second stream also uses before that stream has finished with it.
fn another_stream(backend: &AnyBackend, pool: &Pool<AnyBackend>) -> Result<()> {
    let size = Bytes::mib(16);
    let mut block = pool.alloc(size)?;
    let address = block.address();
    // Work on a second stream; in a program these are kernels.
    // SAFETY: the block is mapped memory of the device, and the pool does not reuse it before this work is done.
    let work = match unsafe { backend.start_pattern(DEVICE, address, size, 1, 200) } {
        Err(error) if matches!(error.detail(), Detail::Unsupported { .. }) => {
            println!("{} has no streams", backend.vendor());
            return Ok(());
        }
        other => other?,
    };
    // SAFETY: the stream exists until `work` is dropped, at the end, after the pool has forgotten it.
    let stream = unsafe { Stream::from_raw(work.stream().as_raw()) };
    block.record_use(stream)?;
    drop(block); // returns at once, without waiting

    let next = pool.alloc(size)?;
    if work.is_done()? {
        println!("the work was done before its block was freed");
    } else {
        println!("the block at {address} waits for its stream; the next one is at {}", next.address());
        assert_ne!(next.address(), address);
    }
    // The stream will be destroyed: the pool forgets it without waiting.
    pool.forget_stream(stream)
}

/// Mistakes are errors and change nothing.
fn what_does_not_work<B: Backend>(pool: &Pool<B>) -> Result<()> {
    let address = pool.keep(pool.alloc(Bytes::mib(1))?)?;
    pool.free_at(address)?;
    for (what, address) in [("a block twice", address), ("an address of no block", address + Bytes(8))] {
        match pool.free_at(address) {
            Err(error) => println!("{what}: {error}"),
            Ok(()) => unreachable!("{what} was freed"),
        }
    }
    match pool.alloc(Bytes::gib(1)) {
        Err(error) if error.is_out_of_memory() => println!("more than the budget: {error}"),
        other => unreachable!("more than the budget: {other:?}"),
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
