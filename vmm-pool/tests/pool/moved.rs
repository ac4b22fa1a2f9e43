//! Moves of a pool to another device beside the calls of other threads, and moves that fail.
#![allow(unsafe_code)]

use gpu_vmm_core::{
    Access, Address, Bytes, Detail, DeviceId, ErrorKind, Location, MovePath, Moved, OffsetRange, Operation,
    Properties, Result, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{FaultInject, Random, TestKit};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

type Faulty = FaultInject<HostBackend>;

const FIRST: DeviceId = DeviceId(0);
const SECOND: DeviceId = DeviceId(1);
const THIRD: DeviceId = DeviceId(2);
const PAGE: u64 = 2 << 20;

fn backend() -> Faulty {
    FaultInject::new(HostConfig::new().devices(3).memory(Bytes::mib(128)).open().unwrap())
}

fn filled(pool: &Pool<Faulty>, size: u64, number: u8) -> Block<Faulty> {
    let mut block = pool.alloc(Bytes(size)).unwrap();
    block.write(Bytes::ZERO, &vec![number; size as usize]).unwrap();
    block
}

#[track_caller]
fn check(block: &Block<Faulty>, number: u8) {
    let mut bytes = vec![0; block.size().0 as usize];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == number), "{block:?}");
}

fn move_to(pool: &Pool<Faulty>, device: DeviceId) -> Result<Moved> {
    pool.move_to_device(device, MovePath::Fastest(None), WaitFor::all_devices())
}

/// The call that copies a region's memory to a device that can reach it.
const COPY: Operation = Operation::Copy;

#[test]
fn requests_and_copies_wait_for_the_move() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let kept = filled(&pool, 3 * PAGE, 1);
    let (freed, other) = (filled(&pool, PAGE, 2), pool.clone());
    let (ends, ended) = mpsc::channel();
    backend.during(COPY, move || {
        let waiting = other.clone();
        thread::spawn(move || {
            let of_tag = filled(&waiting, 1000, 3);
            check(&of_tag, 3);
            ends.send(waiting.find(of_tag.address()).unwrap().memory.device).unwrap();
        });
        // A free waits for nothing, and neither does a device that is allowed, nor another tag, which moves as well.
        drop(freed);
        other.allow_access(THIRD).unwrap();
        let tagged = other.tagged("later").unwrap();
        std::mem::forget(filled(&tagged, 2 * PAGE, 4));
        assert!(!other.is_suspended("later").unwrap() && other.stats().held > 0);
        assert!(!other.snapshot().spaces.is_empty());
    });
    move_to(&pool, SECOND).unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)).unwrap(), SECOND);
    check(&kept, 1);
    let snapshot = pool.snapshot();
    let at = snapshot.spaces.iter().find(|space| space.tag == "later").unwrap().base;
    for address in [kept.address(), Address(at)] {
        let access = |device| backend.access_at(address, device).unwrap();
        assert_eq!([SECOND, THIRD].map(access), [Some(Access::ReadWrite); 2]);
        assert_ne!(access(FIRST), Some(Access::ReadWrite));
    }
    assert!(pool.kinds().iter().all(|(memory, _)| *memory == Properties::on(SECOND)));
}

/// A copy within the pool waits as well, and then uses the new device.
#[test]
fn copies_between_blocks_use_the_new_device() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let (from, mut to) = (filled(&pool, PAGE, 5), filled(&pool.tagged("to").unwrap(), PAGE, 6));
    let (begins, begun) = mpsc::channel();
    let copying = thread::spawn(move || {
        begun.recv().unwrap();
        to.copy_from(Bytes::ZERO, &from, OffsetRange { offset: Bytes::ZERO, length: Bytes(PAGE) }).unwrap();
        check(&to, 5);
    });
    backend.during(COPY, move || {
        begins.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
    });
    move_to(&pool, SECOND).unwrap();
    copying.join().unwrap();
}

#[test]
fn failed_move_changes_nothing() {
    let backend = FaultInject::new(HostConfig::new().devices(3).memory(Bytes::mib(64)).open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap();
    let shareable = pool.with_memory(Properties::on(FIRST).shareable()).unwrap();
    let blocks = [filled(&pool, 6 * PAGE, 1), filled(&shareable, 5 * PAGE, 2)];
    // The first kind fits there, and the second does not.
    let other = Pool::builder(&backend).device(SECOND).build().unwrap();
    let taken = other.alloc(Bytes::mib(64) - Bytes(8 * PAGE)).unwrap();
    for _ in 0..2 {
        let error = move_to(&pool, SECOND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert_eq!([&pool, &shareable].map(|pool| pool.memory().device), [FIRST; 2]);
        check(&blocks[0], 1);
        check(&blocks[1], 2);
        check(&filled(&pool, PAGE, 3), 3);
        assert_eq!(backend.access_at(blocks[0].address(), SECOND).unwrap(), Some(Access::None));
    }
    drop((taken, other));
    move_to(&pool, SECOND).unwrap();
    check(&blocks[1], 2);
    let later = pool.with_memory(Properties::on(SECOND).located(Location::Host)).unwrap();
    assert_eq!(later.memory().device, SECOND);
    assert!(pool.with_memory(Properties::on(FIRST).remote_dma()).is_err());
}

/// If the rollback of a move fails too, the pool does not use the memory again that stays on the new device.
#[test]
fn failed_rollback_loses_pages() {
    let mut lost = 0;
    for number in 0.. {
        let backend = backend();
        let pool = Pool::builder(&backend).build().unwrap();
        let blocks = [filled(&pool, 6 * PAGE, 1), filled(&pool.tagged("b").unwrap(), 2 * PAGE, 2)];
        backend.fail(number, u64::MAX);
        let answer = move_to(&pool, SECOND);
        backend.stop();
        let is_done = answer.is_ok();
        assert_eq!(pool.memory().device, if is_done { SECOND } else { FIRST });
        let block = filled(&pool, PAGE, 3);
        let (memory, _) = pool.memory_at(block.address(), Bytes(1)).unwrap();
        assert_eq!(memory[0].device(), pool.memory().device);
        check(&block, 3);
        for (block, number) in blocks.iter().zip([1, 2]) {
            match block.check_usable(Operation::Read) {
                Ok(()) => check(block, number),
                Err(error) => {
                    assert!(matches!(answer.as_ref().unwrap_err().detail(), Detail::RollbackFailed { .. }));
                    assert_eq!(error.kind(), ErrorKind::Poisoned);
                    lost += 1;
                }
            }
        }
        drop((blocks, block, memory, pool));
        assert_eq!(backend.live().handles, 0, "from call {number} on");
        if is_done {
            break;
        }
    }
    assert!(lost > 0);
}

/// Memory that passed from one tag to another is mapped at addresses of both.
#[test]
fn memory_of_two_tags_moves() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let [one, other] = ["one", "other"].map(|tag| pool.tagged(tag).unwrap());
    let (first, last) = (filled(&one, 6 * PAGE, 1), filled(&one, PAGE, 2));
    drop(first);
    let taken = filled(&other, 6 * PAGE, 3);
    assert_eq!((pool.stats().held, pool.stats().mapped), (7 * PAGE, 13 * PAGE));
    move_to(&pool, SECOND).unwrap();
    check(&last, 2);
    check(&taken, 3);
    assert_eq!((pool.stats().held, pool.stats().mapped), (7 * PAGE, 7 * PAGE));
}

/// Moves there and back beside threads that allocate, write, read and free.
#[test]
fn moves_beside_threads() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    thread::scope(|scope| {
        for seed in 1..4 {
            let pool = pool.clone();
            scope.spawn(move || {
                let (mut random, mut blocks) = (Random(seed), Vec::new());
                for number in 0..300_u32 {
                    let tag = ["", "a", "b"][random.below(3)];
                    let size = [300, 5000, 1 << 20, 3 << 20][random.below(4)];
                    let number = number as u8;
                    blocks.push((filled(&pool.tagged(tag).unwrap(), size, number), number));
                    if blocks.len() > 5 {
                        let (block, number) = blocks.swap_remove(random.below(6));
                        check(&block, number);
                    }
                }
            });
        }
        for round in 0..20 {
            move_to(&pool, [SECOND, THIRD, FIRST][round % 3]).unwrap();
        }
    });
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.stats().held, backend.live().handles), (0, 0));
}

/// Blocks of the default stream follow it to the new device; a stream that the pool knows keeps its events.
#[test]
fn streams_serve_after_the_move() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let own = backend.own_stream(FIRST).unwrap();
    // SAFETY: the registration ends before the stream.
    let registered = unsafe { pool.register_stream(own.stream()) }.unwrap();
    let blocks = [pool.alloc(Bytes(PAGE)).unwrap(), registered.alloc(Bytes(PAGE)).unwrap()];
    move_to(&pool, SECOND).unwrap();
    drop(blocks);
    drop([registered.alloc(Bytes(3 * PAGE)).unwrap(), pool.alloc(Bytes(3 * PAGE)).unwrap()]);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
}

/// Devices that had access have it again after a move that failed, the new device among them: with several tags, and with several kinds.
#[test]
fn failed_move_leaves_access_as_it_was() {
    for (access, kinds) in [(Access::ReadWrite, false), (Access::Read, false), (Access::Read, true)] {
        let backend = FaultInject::new(HostConfig::new().devices(3).memory(Bytes::mib(64)).open().unwrap());
        let pool = Pool::builder(&backend).build().unwrap();
        let other = match kinds {
            true => pool.with_memory(Properties::on(FIRST).shareable()).unwrap(),
            false => pool.tagged("b").unwrap(),
        };
        for pool in [&pool, &other] {
            pool.allow_access_as(SECOND, access).unwrap();
            pool.allow_access(THIRD).unwrap();
        }
        let blocks = [filled(&pool, 6 * PAGE, 1), filled(&other, 5 * PAGE, 2)];
        // The first region fits there, and the second does not.
        let full = Pool::builder(&backend).device(SECOND).build().unwrap();
        let taken = full.alloc(Bytes::mib(64) - Bytes(8 * PAGE)).unwrap();
        let error = move_to(&pool, SECOND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let later = [filled(&pool, PAGE, 3), filled(&other, PAGE, 4)];
        for block in blocks.iter().chain(&later) {
            let found =
                [FIRST, SECOND, THIRD].map(|device| backend.access_at(block.address(), device).unwrap());
            assert_eq!(
                found,
                [Access::ReadWrite, access, Access::ReadWrite].map(Some),
                "{access} kinds {kinds}"
            );
        }
        drop(taken);
    }
}

/// A device that is allowed during a move, and cannot reach the new memory, makes the move fail before anything has passed to the new device.
#[test]
fn device_allowed_meanwhile_can_fail_the_move() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let shareable = pool.with_memory(Properties::on(FIRST).shareable()).unwrap();
    let blocks = [filled(&pool, PAGE, 1), filled(&shareable, PAGE, 2)];
    backend.hide_memory(SECOND, true);
    let allowing = pool.clone();
    backend.during(Operation::CreateMemory, move || allowing.allow_access(THIRD).unwrap());
    let error = move_to(&pool, SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerUnreachable, "{error}");
    assert_eq!([&pool, &shareable].map(|pool| pool.memory().device), [FIRST; 2]);
    check(&blocks[0], 1);
    check(&blocks[1], 2);
    assert_eq!(backend.access_at(blocks[0].address(), THIRD).unwrap(), Some(Access::ReadWrite));
    check(&filled(&pool, PAGE, 3), 3);
    backend.hide_memory(SECOND, false);
    move_to(&pool, SECOND).unwrap();
    check(&blocks[1], 2);
}

/// A save that begins during a move is refused, also before the move has taken the memory: its pages would move while they are read.
#[cfg(feature = "snapshot")]
#[test]
fn save_during_a_move_is_refused() {
    use gpu_vmm_core::StagingRing;
    let backend = backend();
    let pool = Pool::builder(&backend).restorable().build().unwrap();
    let block = filled(&pool, 3 * PAGE, 1);
    drop(filled(&pool, PAGE, 2));
    let path = std::env::temp_dir().join(format!("gpu-vmm-moved-{}", std::process::id()));
    let (saving, at, of_save) = (pool.clone(), path.clone(), backend.clone());
    let (tells, told) = mpsc::channel();
    // The move waits for the streams of freed blocks.
    backend.during(Operation::WaitForEvent, move || {
        // SAFETY: no work uses the blocks.
        let done = unsafe { WaitFor::nothing() };
        let ring = StagingRing::new(&of_save, 2, Bytes::mib(1)).unwrap();
        tells.send(saving.save(&ring).write(&at, done).map(drop)).unwrap();
    });
    move_to(&pool, SECOND).unwrap();
    let answer = told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Suspended);
    check(&block, 1);
    let _ = std::fs::remove_file(path);
}

/// A program that keeps freed blocks waits for the move before it hands one out, and does not take the memory for lost.
#[test]
fn kept_blocks_are_usable_during_a_move() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let block = filled(&pool, 2 * PAGE, 1);
    let (tells, told) = mpsc::channel();
    backend.during(COPY, move || {
        thread::spawn(move || {
            let usable = block.check_usable(Operation::Allocate);
            tells.send((usable, block)).unwrap();
        });
        thread::sleep(Duration::from_millis(20));
    });
    move_to(&pool, SECOND).unwrap();
    let (usable, block) = told.recv_timeout(Duration::from_secs(20)).unwrap();
    usable.unwrap();
    check(&block, 1);
}

/// Whichever call fails, a move that fails leaves all kinds, contents and accesses as they were.
#[test]
fn each_failed_call_changes_nothing() {
    let mut failures = 0;
    for number in 0.. {
        let backend = backend();
        let pool = Pool::builder(&backend).build().unwrap();
        let other = pool.with_memory(Properties::on(FIRST).shareable()).unwrap();
        other.allow_access_as(SECOND, Access::Read).unwrap();
        pool.allow_access(SECOND).unwrap();
        pool.allow_access(THIRD).unwrap();
        let blocks = [
            filled(&pool, 3 * PAGE, 1),
            filled(&pool.tagged("b").unwrap(), PAGE, 2),
            filled(&other, 2 * PAGE, 3),
        ];
        drop(filled(&pool, PAGE, 7));
        backend.fail(number, 1);
        let answer = move_to(&pool, SECOND);
        let made = backend.stop();
        let device = if answer.is_ok() { SECOND } else { FIRST };
        if let Err(error) = &answer {
            failures += 1;
            assert!(!matches!(error.detail(), Detail::RollbackFailed { .. }), "call {number}: {error}");
        }
        assert_eq!([&pool, &other].map(|pool| pool.memory().device), [device; 2], "call {number}");
        let later = [filled(&pool, PAGE, 4), filled(&other, PAGE, 5)];
        for (block, n) in blocks.iter().chain(&later).zip([1, 2, 3, 4, 5]) {
            check(block, n);
            let found = [FIRST, SECOND, THIRD]
                .map(|device| backend.access_at(block.address(), device).unwrap().unwrap());
            let of_other = n == 3 || n == 5;
            let third = if of_other { Access::None } else { Access::ReadWrite };
            let want = match (answer.is_ok(), of_other) {
                (true, _) => [Access::None, Access::ReadWrite, third],
                (false, true) => [Access::ReadWrite, Access::Read, third],
                (false, false) => [Access::ReadWrite, Access::ReadWrite, third],
            };
            assert_eq!(found, want, "call {number} of {made}, block {n}: {answer:?}");
        }
        drop((blocks, later));
        move_to(&pool, THIRD).unwrap();
        move_to(&pool, FIRST).unwrap();
        drop((other, pool));
        assert_eq!(backend.live().handles, 0, "call {number}");
        if answer.is_ok() && made <= number {
            break;
        }
    }
    assert!(failures > 10);
}

/// A stream of the new device that the pool knew before the move has events of its device: no wait for the devices is needed.
#[test]
fn streams_of_the_new_device_are_asked() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let own = [(); 2].map(|()| backend.own_stream(SECOND).unwrap());
    // SAFETY: the registrations end before the streams.
    let registered = own.each_ref().map(|own| unsafe { pool.register_stream(own.stream()) }.unwrap());
    // Only the first is found to be of another device before the move.
    drop(registered[0].alloc(Bytes(3 * PAGE)).unwrap());
    pool.trim(Bytes::ZERO).unwrap();
    move_to(&pool, SECOND).unwrap();
    let waits = backend.made(Operation::WaitForDevice);
    for stream in &registered {
        drop(stream.alloc(Bytes(3 * PAGE)).unwrap());
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!((pool.stats().held, backend.made(Operation::WaitForDevice)), (0, waits));
    }
}
