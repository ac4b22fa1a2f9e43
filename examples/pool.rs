//! Many allocations of all sizes from one pool: what it is to use it, and where its memory is.
//!
//! ```text
//! cargo run --example pool
//! ```
#![allow(unsafe_code)] // work on a stream uses memory, which cannot be checked

use gpu_vmm::pool::Pool;
use gpu_vmm::testkit::TestKit;
use gpu_vmm::{AnyBackend, Backend, Bytes, Detail, DeviceId, Result, Stream};

const DEVICE: DeviceId = DeviceId(0);
/// The least that every block is aligned to in any case.
const ANY: Bytes = Bytes(256);

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    // It holds no memory before some is asked for. A clone is the same pool, for another thread or owner.
    let pool = Pool::builder(&backend).device(DEVICE).budget(Bytes::mib(512)).build()?;

    alloc_and_free(&pool)?;
    another_stream(&backend, &pool)?;
    what_does_not_work(&pool)?;

    // Memory in which nothing lies serves the next request, or goes back to the driver.
    let given_back = pool.trim(Bytes::ZERO)?;
    println!("{given_back} went back to the driver: {}", pool.stats());
    assert_eq!((pool.stats().live, pool.stats().kept), (0, 0));
    Ok(())
}

/// Blocks are owned: dropping one frees it.
fn alloc_and_free<B: Backend>(pool: &Pool<B>) -> Result<()> {
    // The stream is the one whose work will use the memory: what is freed serves its next request at once, with nothing
    // to wait for.
    let sizes = [Bytes(1000), Bytes::kib(48), Bytes::mib(3), Bytes::mib(100)];
    let mut blocks = Vec::new();
    for size in sizes {
        let block = pool.alloc(size)?;
        println!("{size} at {}", block.address());
        assert!(block.address().is_aligned_to(ANY));
        blocks.push(block);
    }
    println!("{}", pool.stats());
    let asked: Bytes = sizes.into_iter().sum();
    assert_eq!(pool.stats().live, asked.0);

    // Any address in a block leads to it.
    let inside = blocks[2].address() + Bytes::mib(1);
    if let Some(found) = pool.find(inside) {
        println!("{inside} is {} into the block at {}", found.offset, found.base);
        assert_eq!((found.base, found.offset), (blocks[2].address(), Bytes::mib(1)));
    } else {
        unreachable!("{inside} lies in a live block");
    }

    // The same again asks the driver for nothing.
    blocks.clear();
    let before = pool.stats().driver_calls;
    let again = pool.alloc(Bytes::mib(100))?;
    assert_eq!(pool.stats().driver_calls, before);
    println!("{} again, at {}, without a call of the driver", again.size(), again.address());

    // Code that keeps addresses and no owners frees by them.
    let address = pool.keep(again)?;
    pool.free_at(address)
}

/// A block that a second stream uses too is not given out before that stream is done with it.
fn another_stream(backend: &AnyBackend, pool: &Pool<AnyBackend>) -> Result<()> {
    let size = Bytes::mib(16);
    let mut block = pool.alloc(size)?;
    let address = block.address();
    // Some work on a stream of its own; a program has kernels there.
    // SAFETY: the block is mapped and the device's, and is given out again when this work is done and not before.
    let work = match unsafe { backend.start_pattern(DEVICE, address, size, 1, 200) } {
        Err(error) if matches!(error.detail(), Detail::Unsupported { .. }) => {
            println!("there are no streams on {}", backend.vendor());
            return Ok(());
        }
        other => other?,
    };
    // SAFETY: the stream lives until `work` is dropped, at the end, when all that waits for it has been freed.
    let stream = unsafe { Stream::from_raw(work.stream().as_raw()) };
    block.record_use(stream)?;
    drop(block); // at once; nobody waits

    let next = pool.alloc(size)?;
    if work.is_done()? {
        println!("the work was done before its block was freed");
    } else {
        println!("the block at {address} waits for its stream; the next one is at {}", next.address());
        assert_ne!(next.address(), address);
    }
    // The stream is about to go: the pool forgets it, and does not wait.
    pool.forget_stream(stream)
}

/// Mistakes are errors, and nothing has changed.
fn what_does_not_work<B: Backend>(pool: &Pool<B>) -> Result<()> {
    let address = pool.keep(pool.alloc(Bytes::mib(1))?)?;
    pool.free_at(address)?;
    for (what, address) in [("a block twice", address), ("what is no block's", address + Bytes(8))] {
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
