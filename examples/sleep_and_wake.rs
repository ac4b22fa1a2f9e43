//! An inference server that sleeps: host memory keeps its weights, its cache is discarded, other processes can use the GPU's
//! memory, and after waking all addresses are the same.
//!
//! ```text
//! cargo run --release --example sleep_and_wake
//! ```

use gpu_vmm::{
    AnyBackend, Backend, BackingStore, Bytes, DeviceId, Region, RegionState, Result, Suspended, WaitFor,
};
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);
const LAYER: Bytes = Bytes::mib(32);
const LAYERS: u64 = 4;
const CACHE: Bytes = Bytes::mib(64);

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);

    // The weights, layer by layer in one range, and the cache.
    let mut weights = grown(&backend, "weights", LAYER, LAYERS)?;
    let mut cache = grown(&backend, "cache", CACHE, 1)?;
    for layer in 0..LAYERS {
        weights.fill(Bytes(LAYER.0 * layer), LAYER, layer as u8 + 1)?;
    }
    // Kernels, captured graphs and other data contain these addresses.
    let addresses = [weights.address(), cache.address()];

    // The weights go to page-locked memory, which copies fill at the link's full speed. Creating it is slow, so a server
    // creates it once, at its start.
    let began = Instant::now();
    let size = Bytes(LAYER.0 * LAYERS);
    let store = BackingStore::pinned(&backend, size)?;
    println!("created {size} of page-locked memory for the weights in {}", ms(began.elapsed()));

    let awake = free(&backend)?;
    println!("awake:  {awake} are free on the device");

    // Each call waits for the devices before it takes memory away. The cache's contents can be computed again.
    let began = Instant::now();
    let kept = weights.suspend(&store, WaitFor::all_devices())?;
    let given_up = cache.suspend(&BackingStore::nothing(), WaitFor::all_devices())?;
    let took = began.elapsed();
    println!("asleep: {} are free, after {}", free(&backend)?, ms(took));
    println!("        {} of contents are kept, {} were discarded", kept.kept, lost(given_up));
    for region in [&weights, &cache] {
        println!("        {}: {}, {:?}", region.tag(), region.range(), region.state());
    }
    // The addresses stay reserved: an access through the region is an error, and no other memory is mapped there.
    assert!(weights.read(Bytes(0), &mut [0]).is_err());

    // If the device has too little memory, `resume` returns an error, loses nothing, and can be called again.
    let began = Instant::now();
    for region in [&mut weights, &mut cache] {
        region.resume()?;
    }
    println!("awake:  {} are free, after {}", free(&backend)?, ms(began.elapsed()));
    assert!(weights.resume()?.already);

    // All addresses and the weights are unchanged.
    assert_eq!([weights.address(), cache.address()], addresses);
    for layer in 0..LAYERS {
        let mut last = [0; 8];
        weights.read(Bytes(LAYER.0 * (layer + 1) - 8), &mut last)?;
        assert_eq!(last, [layer as u8 + 1; 8]);
    }
    cache.fill(Bytes(0), CACHE, 0)?;
    assert_eq!(cache.state(), RegionState::Active);
    println!("        the weights at {} and the cache at {}, as before", addresses[0], addresses[1]);
    println!("        the weights' bytes are unchanged; the cache has memory and no contents");
    Ok(())
}

/// Returns a region that has grown `count` times by `piece`.
fn grown<B: Backend>(backend: &B, tag: &str, piece: Bytes, count: u64) -> Result<Region<B>> {
    let size = Bytes(piece.0 * count);
    let mut region = Region::builder(backend).on(DEVICE).reserve(size).tag(tag).build()?;
    for number in 1..=count {
        region.grow_to(Bytes(piece.0 * number))?;
    }
    Ok(region)
}

/// Returns the number of bytes that a suspension discarded.
fn lost(suspended: Suspended) -> Bytes {
    suspended.memory - suspended.kept
}

fn free(backend: &AnyBackend) -> Result<Bytes> {
    Ok(backend.memory_info(DEVICE)?.free)
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

#[test]
fn runs() -> Result<()> {
    main()
}
