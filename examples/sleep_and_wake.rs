//! An inference server that sleeps: its weights are kept in the host's memory, its cache is given up, the GPU's memory is
//! free for others, and on waking everything is where it was.
//!
//! ```text
//! cargo run --release --example sleep_and_wake
//! ```

use gpu_vmm::{
    AnyBackend, Backend, BackingStore, Bytes, DeviceId, Region, RegionSet, RegionState, Result, SharedRegion,
    WaitFor,
};
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);
const LAYER: Bytes = Bytes::mib(32);
const LAYERS: u64 = 4;
const CACHE: Bytes = Bytes::mib(64);

fn main() -> Result<()> {
    let backend = AnyBackend::open_best()?;
    println!("on {}, {}", backend.vendor(), backend.devices()[0].name);
    let regions = RegionSet::new();

    // The weights, layer by layer in one range, and the cache. The tags say what belongs together.
    let weights = add(&backend, &regions, "weights", LAYER, LAYERS)?;
    let cache = add(&backend, &regions, "cache", CACHE, 1)?;
    for layer in 0..LAYERS {
        weights.lock()?.fill(Bytes(LAYER.0 * layer), LAYER, layer as u8 + 1)?;
    }
    // Kernels, captured graphs and other data have these addresses.
    let addresses = [weights.lock()?.address(), cache.lock()?.address()];

    // Where the weights go to. Page-locked memory is filled at the link's full speed, and is slow to come by: a server
    // makes it once, when it starts.
    let began = Instant::now();
    let store = BackingStore::pinned(&backend, Bytes(LAYER.0 * LAYERS))?;
    let room = Bytes(LAYER.0 * LAYERS);
    println!("{room} of page-locked memory for the weights were made ahead, in {}", ms(began.elapsed()));

    let awake = free(&backend)?;
    println!("awake:  {awake} are free on the device");

    // Nothing is taken away before the devices have finished. What is in the cache is computed again when it is needed.
    let began = Instant::now();
    let kept = regions.suspend("weights", &store, WaitFor::all_devices())?;
    let given_up = regions.suspend("cache", &BackingStore::nothing(), WaitFor::all_devices())?;
    let took = began.elapsed();
    let asleep = free(&backend)?;
    println!("asleep: {asleep} are free, after {}", ms(took));
    println!("        {} of contents are kept, {} were given up", kept.memory, given_up.memory);
    for (tag, range, state) in regions.states()? {
        println!("        {tag}: {range}, {state:?}");
    }
    // The addresses are still the server's: whoever uses them now is told, and nobody else is given them.
    assert!(weights.lock()?.read(Bytes(0), &mut [0]).is_err());

    // Any number of calls wake it once. Where there is not enough memory for all, those that came before are awake, the
    // others keep what they have in the store, and the same call goes on later.
    let began = Instant::now();
    regions.resume("weights")?;
    regions.resume("cache")?;
    println!("awake:  {} are free, after {}", free(&backend)?, ms(began.elapsed()));
    assert_eq!(regions.resume("weights")?.changed, 0);

    // Everything is where it was.
    assert_eq!([weights.lock()?.address(), cache.lock()?.address()], addresses);
    for layer in 0..LAYERS {
        let mut last = [0; 8];
        weights.lock()?.read(Bytes(LAYER.0 * (layer + 1) - 8), &mut last)?;
        assert_eq!(last, [layer as u8 + 1; 8]);
    }
    cache.lock()?.fill(Bytes(0), CACHE, 0)?;
    assert_eq!(cache.lock()?.state(), RegionState::Active);
    println!("        the weights at {} and the cache at {}, as before", addresses[0], addresses[1]);
    println!("        the weights' bytes are what they were; the cache has room and no contents");
    Ok(())
}

/// A region with so many pieces of this size.
fn add<B: Backend>(
    backend: &B,
    regions: &RegionSet<B>,
    tag: &str,
    piece: Bytes,
    count: u64,
) -> Result<SharedRegion<B>> {
    let size = Bytes(piece.0 * count);
    let mut region = Region::builder(backend).on(DEVICE).reserve(size).tag(tag).build()?;
    for number in 1..=count {
        region.grow_to(Bytes(piece.0 * number))?;
    }
    regions.insert(region)
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
