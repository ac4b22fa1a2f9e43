//! A request that finds too little memory waits for all memory that was freed on streams, also for memory that no event covers.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use gpu_vmm_core::{Bytes, DeviceId, Operation, Stream, SyncCalls};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::{FaultInject, TestKit};

const DEVICE: DeviceId = DeviceId(0);
const QUARTER: Bytes = Bytes::mib(16);

/// Frees two blocks on a busy stream: the first is covered by an event, and for the second none can be recorded. Returns false
/// if the stream's work ended too early to tell anything.
fn all_is_waited_for(rounds: u32) -> bool {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    let own = backend.own_stream(DEVICE).unwrap();
    // SAFETY: the stream lives as long as the pool.
    let stream: Stream<'static> = unsafe { Stream::from_raw(own.stream().as_raw()) };
    let pool = Pool::builder(&backend).build().unwrap();
    let [covered, last] = [(); 2].map(|()| pool.request(QUARTER).stream(stream).alloc().unwrap());
    // SAFETY: the memory is mapped for the device, and the pool unmaps none before the stream has ended its work.
    unsafe { backend.start_pattern_on(DEVICE, stream, last.address(), QUARTER, 1, rounds) }.unwrap();
    drop(covered);
    // For another stream's request the pool records an event behind the first free.
    let other = pool.alloc(QUARTER).unwrap();
    drop(last);
    let is_busy = !own.is_done().unwrap();
    backend.fail_calls(&[Operation::CreateEvent, Operation::RecordEvent]);
    let all = pool.alloc(Bytes::mib(48));
    backend.stop();
    assert!(all.is_ok(), "memory that was freed behind the last event was not waited for: {all:?}");
    drop((all, other));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
    backend.synchronize_stream(DEVICE, own.stream()).unwrap();
    is_busy
}

#[test]
fn an_older_event_does_not_cover_the_last_free() {
    let mut rounds = (0..8).map(|doubled| 64 << doubled);
    assert!(rounds.any(all_is_waited_for), "the stream was never busy");
}

/// While a forgotten stream is busy, a new stream gets a number of its own, and not that of a stream that is merely idle.
#[test]
fn an_idle_stream_keeps_its_number() {
    let backend = HostConfig::new().open().unwrap();
    let own = [(); 3].map(|()| backend.own_stream(DEVICE).unwrap());
    // SAFETY: the streams live as long as the pool.
    let [idle, busy, new] =
        [0, 1, 2].map(|index: usize| unsafe { Stream::<'static>::from_raw(own[index].stream().as_raw()) });
    let pool = Pool::builder(&backend).build().unwrap();
    let lasting = pool.request(QUARTER).stream(idle).alloc().unwrap();
    drop(pool.request(QUARTER).stream(idle).alloc().unwrap());
    // All work on the idle stream is done, as the pool learns when another stream needs its memory.
    drop(pool.alloc(QUARTER).unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    let used = pool.request(QUARTER).stream(busy).alloc().unwrap();
    // SAFETY: the memory is mapped for the device, and the pool unmaps none before the stream has ended its work.
    unsafe { backend.start_pattern_on(DEVICE, busy, used.address(), QUARTER, 1, 64) }.unwrap();
    drop(used);
    pool.forget_stream(busy).unwrap();
    let block = pool.request(QUARTER).stream(new).alloc().unwrap();
    let stream_of = |address| pool.find(address).unwrap().stream;
    assert_eq!(
        (stream_of(lasting.address()), stream_of(block.address())),
        (idle, new),
        "the number of a stream that is still served was reused"
    );
    backend.synchronize_stream(DEVICE, own[1].stream()).unwrap();
}
