//! Rule 10: a process forked from one with an open driver makes no driver call, and a process forked before can open the
//! driver for itself.
#![allow(unsafe_code)] // fork

use crate::case::cases;
use crate::fork_server::Ended;
use crate::library::tools::{has, write};
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::extend::DropLog;
use gpu_vmm_core::{
    Access, BackingStore, Bytes, CopyStream, Detail, DeviceVec, Error, Event, Operation, PageList,
    PhysicalMemory, Pinned, Placement, Properties, Region, StagingRing, Stream, WaitFor,
};
use gpu_vmm_testkit::forked::is_forked;
use gpu_vmm_testkit::{PATTERN_WORD, TestKit, WorkStream, pattern_word};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

cases! { "fork":
    /// In a forked child every call that would reach the driver returns an error about the fork, and dropping values does nothing.
    a_forked_child_gets_errors,
    /// A child of the child gets the same errors.
    a_grandchild_gets_errors,
    /// Whatever a forked child drops, the parent keeps its memory and addresses, and they stay usable.
    what_a_child_drops_is_the_parents,
    /// A forked child can execute a program, as children of the standard library do.
    a_child_can_exec,
    /// A child forked while other threads are inside the driver gets errors, and waits for none of their locks.
    forked_while_threads_are_at_work,
    /// A child forked while a staging ring is in use waits for no thread of its parent, and frees no space in a backing store.
    forked_while_contents_are_copied,
    /// A child forked while other threads hold locks of the library gets errors, and waits for none of these locks.
    forked_while_locks_are_held,
    /// A process forked before the driver was opened can open it for itself while the first process uses it.
    forked_before_opening with opens_for_itself,
}

const SEED: u64 = 700;

/// The time limit for a case's child, which needs almost none.
const SECONDS: u32 = 20;

/// Runs a function in a forked child and returns how the child ended. The child has a copy of this process's memory, and
/// ends without dropping its values.
///
/// Other threads of this process do not exist in the child, and their locks stay locked. The child calls only gpu-vmm, which
/// checks for the fork first, and the C library's heap, which a fork leaves consistent.
pub(crate) fn forked(child: impl FnOnce() -> i32) -> Ended {
    // SAFETY: see above.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: the alarm ends a child that waits for a lock, and `_exit` skips the parent's exit handlers.
            unsafe {
                libc::alarm(SECONDS);
                libc::_exit(child())
            }
        }
        pid => {
            let mut status = 0;
            // SAFETY: the child belongs to this process.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            Ended::from_status(status)
        }
    }
}

/// Returns the number of the first check that does not hold, from 1 on, or 0.
pub(crate) fn first_wrong(checks: &[bool]) -> i32 {
    checks.iter().position(|held| !held).map_or(0, |index| index as i32 + 1)
}

fn region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    write(subject, &mut region, SEED);
    region
}

/// Makes every call that reaches a driver. Returns the number of the first one without the error about the fork, or 0.
fn first_that_reaches_the_driver<B: TestKit>(
    subject: &Subject<B>,
    region: &mut Region<B>,
    (pages, memory): (&PageList<B>, &PhysicalMemory<B>),
    vec: &mut DeviceVec<u32, B>,
    event: &mut dyn Event,
) -> i32 {
    let (backend, device, unit) = (&subject.backend, subject.device, subject.unit());
    let behind = region.end();
    // SAFETY: null is the default stream of all vendors.
    let stream = unsafe { Stream::from_raw(std::ptr::null_mut()) };
    first_wrong(&[
        is_forked(PhysicalMemory::create(backend, unit, Properties::on(device))),
        is_forked(
            PageList::new(backend, unit, Properties::on(device), unit).and_then(|list| list.take(unit)),
        ),
        is_forked(pages.take(unit)),
        is_forked(pages.set_budget(unit)),
        pages.stats().held == Bytes::ZERO,
        is_forked(Region::builder(backend).reserve(unit).build()),
        is_forked(subject.region(1).at(Placement::Prefer(region.address())).build()),
        is_forked(region.grow_to(behind + unit)),
        is_forked(region.grow_or_move(subject.units(64), WaitFor::all_devices())),
        is_forked(region.map(behind, memory)),
        is_forked(region.set_access(Bytes(0), behind, device, Access::Read)),
        is_forked(region.write(Bytes(0), &[0; 8])),
        is_forked(region.read(Bytes(0), &mut [0; 8])),
        is_forked(region.fill(Bytes(0), unit, 0)),
        is_forked(region.write_pattern(device, Bytes(0), unit, 0)),
        is_forked(region.count_wrong(device, Bytes(0), unit, 0)),
        is_forked(region.unmap(Bytes(0), behind, WaitFor::all_devices())),
        is_forked(region.shrink_to(Bytes(0), WaitFor::all_devices())),
        is_forked(region.suspend(&BackingStore::nothing(), WaitFor::all_devices())),
        is_forked(vec.push(1)),
        is_forked(backend.pin(unit)),
        is_forked(backend.copy_stream(device)),
        is_forked(backend.memory_info(device)),
        is_forked(backend.capabilities(device)),
        is_forked(backend.synchronize(device)),
        is_forked(backend.synchronize_stream(device, stream)),
        is_forked(backend.event(device)),
        is_forked(event.record(stream)),
        is_forked(event.is_done()),
        is_forked(event.wait()),
        is_forked(event.hold(stream)),
        is_forked(backend.is_capturing(stream)),
        is_forked(backend.own_stream(device)),
        is_forked(backend.deferred().unless_capturing(Operation::Fill, || Ok(()))),
    ])
}

/// The objects of a process that forks.
struct Parent<B: TestKit> {
    /// Declared, and so dropped, before the memory that it copies to.
    copy_stream: Box<dyn CopyStream>,
    pinned: Box<dyn Pinned>,
    event: Box<dyn Event>,
    own: Box<dyn WorkStream>,
    region: Region<B>,
    /// The list of `memory`, which has another page that is free.
    pages: PageList<B>,
    memory: PhysicalMemory<B>,
    vec: DeviceVec<u32, B>,
}

impl<B: TestKit> Parent<B> {
    fn new(subject: &Subject<B>) -> Self {
        let mut vec = DeviceVec::build(subject.region(2)).unwrap();
        vec.extend_from_slice(&[7; 100]).unwrap();
        let (copy_stream, pinned) =
            (subject.backend.copy_stream(subject.device), subject.backend.pin(Bytes(8)));
        // Freed memory of a guarded region is poisoned. A child must not do so, because it frees no memory.
        let (unit, properties) = (subject.unit(), subject.properties());
        let pages = PageList::new(&subject.backend, unit, properties, subject.units(2)).unwrap();
        let memory = pages.take(subject.units(2)).unwrap().swap_remove(0);
        let mut guarded = subject.region(1).guarded().build().unwrap();
        subject.open(&mut guarded, Bytes(0), &memory);
        write(subject, &mut guarded, SEED + 2);
        guarded.unmap(Bytes(0), subject.unit(), WaitFor::all_devices()).unwrap();
        let mut event = subject.backend.event(subject.device).unwrap();
        let own = subject.backend.own_stream(subject.device).unwrap();
        event.record(own.stream()).unwrap();
        let (copy_stream, pinned) = (copy_stream.unwrap(), pinned.unwrap());
        Self { copy_stream, pinned, event, own, region: region(subject), pages, memory, vec }
    }

    /// Checks that the parent has all of its objects and can use them.
    fn check(mut self, subject: &Subject<B>) {
        assert!(has(subject, &self.region, SEED), "the bytes are as they were");
        let word = self.pinned.start().cast::<u64>();
        // SAFETY: both sides have one word, and no other code uses it until the copy stream has finished.
        unsafe { self.copy_stream.copy_to_host(word.as_ptr().cast(), self.region.address(), PATTERN_WORD) }
            .unwrap();
        self.copy_stream.finish().unwrap();
        self.event.record(self.own.stream()).unwrap();
        self.event.wait().unwrap();
        assert!(self.event.is_done().unwrap() && self.own.is_done().unwrap());
        // SAFETY: the copy has written the word, and no code writes it now.
        assert_eq!(unsafe { word.read() }, pattern_word(SEED, 0));
        self.region.map(subject.units(2), &self.memory).unwrap();
        self.region.set_access(subject.units(2), subject.unit(), subject.device, Access::ReadWrite).unwrap();
        subject.check(&self.region, subject.units(2), subject.unit(), SEED + 2);
        write(subject, &mut self.region, SEED + 1);
        assert!(has(subject, &self.region, SEED + 1));
        self.vec.push(8).unwrap();
        assert_eq!(self.vec.to_vec().unwrap()[99..], [7, 8]);
        let stats = self.pages.stats();
        assert_eq!((stats.held, stats.free), (subject.units(2), subject.unit()));
    }
}

fn a_forked_child_gets_errors<B: TestKit>(subject: &Subject<B>) {
    let mut parent = Parent::new(subject);
    let ended = forked(|| {
        let Parent { region, pages, memory, vec, event, copy_stream, .. } = &mut parent;
        let first = first_that_reaches_the_driver(subject, region, (pages, memory), vec, &mut **event);
        if first == 0 && !is_forked(copy_stream.finish()) { 100 } else { first }
    });
    assert_eq!(ended, Ended::Exit(0), "the number of the call without the error about the fork");
    parent.check(subject);
}

fn a_grandchild_gets_errors<B: TestKit>(subject: &Subject<B>) {
    let mut parent = Parent::new(subject);
    let ended = forked(|| {
        let grandchild = forked(|| {
            let Parent { region, pages, memory, vec, event, .. } = &mut parent;
            first_that_reaches_the_driver(subject, region, (pages, memory), vec, &mut **event)
        });
        match grandchild {
            Ended::Exit(status) => status,
            _ => -1,
        }
    });
    assert_eq!(ended, Ended::Exit(0), "the number of the call without the error about the fork");
    parent.check(subject);
}

fn what_a_child_drops_is_the_parents<B: TestKit>(subject: &Subject<B>) {
    let mut parent = Some(Parent::new(subject));
    let free = subject.free_here();
    let ended = forked(|| {
        let Parent { copy_stream, pinned, event, own, region, pages, memory, vec } =
            parent.take().expect("the child's copy");
        // A page that returns to its list in the child, and the list with its pages.
        drop((copy_stream, pinned, event, own, memory, pages, vec));
        let closed = region.close(WaitFor::all_devices());
        first_wrong(&[is_forked(closed), subject.backend.drop_log().take_last().is_none()])
    });
    assert_eq!(ended, Ended::Exit(0), "the number of the check that did not hold");
    assert_eq!(subject.free_here(), free, "the child has released no memory");
    parent.take().expect("the parent's objects").check(subject);
}

fn a_child_can_exec<B: TestKit>(subject: &Subject<B>) {
    let parent = Parent::new(subject);
    let ended = forked(|| {
        let words = [c"sh", c"-c", c"exit 7"];
        let [sh, c, text] = words.map(std::ffi::CStr::as_ptr);
        // SAFETY: a path, and a list of strings that ends with a null pointer. If this call returns, it has failed.
        unsafe { libc::execv(c"/bin/sh".as_ptr(), [sh, c, text, std::ptr::null()].as_ptr()) };
        1
    });
    assert_eq!(ended, Ended::Exit(7));
    let status = std::process::Command::new("/bin/sh").args(["-c", "exit 8"]).status().unwrap();
    assert_eq!(status.code(), Some(8));
    parent.check(subject);
}

/// Forks `times` times while other threads repeat some work.
fn forked_beside(times: usize, threads: u64, work: impl Fn(u64) + Sync, mut child: impl FnMut() -> i32) {
    let stop = AtomicBool::new(false);
    let ended: Vec<Ended> = std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, work) = (&stop, &work);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    work(thread);
                }
            });
        }
        let ended = (0..times).map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(3));
            forked(&mut child)
        });
        let ended = ended.collect();
        stop.store(true, Ordering::Relaxed);
        ended
    });
    for ended in ended {
        assert_eq!(
            ended,
            Ended::Exit(0),
            "the number of the call without the error about the fork, or a signal because of a lock"
        );
    }
}

fn forked_while_threads_are_at_work<B: TestKit>(subject: &Subject<B>) {
    let mut parent = Parent::new(subject);
    let work = |thread| {
        let mut region = subject.region(2).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        write(subject, &mut region, thread);
        assert!(has(subject, &region, thread));
    };
    forked_beside(6, 3, work, || {
        let Parent { region, pages, memory, vec, event, .. } = &mut parent;
        first_that_reaches_the_driver(subject, region, (pages, memory), vec, &mut **event)
    });
    parent.check(subject);
}

fn forked_while_contents_are_copied<B: TestKit>(subject: &Subject<B>) {
    let ring = Arc::new(StagingRing::new(&subject.backend, 1, Bytes(4096)).unwrap());
    let store = BackingStore::pageable(Arc::clone(&ring));
    let room = BackingStore::pinned(&subject.backend, subject.units(2)).unwrap();
    let (mut here, mut asleep) = (region(subject), Some(region(subject)));
    asleep.as_mut().unwrap().suspend(&room, WaitFor::all_devices()).unwrap();
    let moving = Mutex::new(region(subject));
    let work = |_| {
        let mut region = moving.lock().unwrap();
        region.suspend(&store, WaitFor::all_devices()).unwrap();
        region.resume().unwrap();
    };
    forked_beside(6, 1, work, || {
        // SAFETY: no device uses the memory.
        let done = unsafe { WaitFor::nothing() };
        let asleep = asleep.take();
        let free = room.free();
        first_wrong(&[
            ring.size() == Bytes(8192),
            is_forked(store.trim()),
            is_forked(here.suspend(&store, done)),
            is_forked(here.suspend(&room, done)),
            asleep.is_some_and(|mut region| is_forked(region.resume())) && room.free() == free,
        ])
    });
    let mut asleep = asleep.unwrap();
    asleep.resume().unwrap();
    assert!(has(subject, &asleep, SEED) && has(subject, &here, SEED));
}

fn forked_while_locks_are_held<B: TestKit>(subject: &Subject<B>) {
    let (backend, log) = (&subject.backend, DropLog::new());
    let new = || {
        let mut region = subject.space(1).tag("all").build().unwrap();
        region.grow_to(subject.granularity()).unwrap();
        region
    };
    let mut late = Some(new());
    let work = |thread| match thread {
        0 => {
            log.record(Error::new(Operation::Allocate, Detail::ZeroSize));
            drop(log.take_last());
        }
        _ => {
            new().release_later();
            backend.deferred().collect(backend).unwrap();
        }
    };
    forked_beside(40, 2, work, || {
        let region = late.take();
        log.record(Error::new(Operation::Allocate, Detail::ZeroSize));
        first_wrong(&[
            log.take_last().is_none(),
            is_forked(backend.deferred().collect(backend)),
            region.is_some_and(|region| {
                region.release_later();
                true
            }),
        ])
    });
}

fn forked_before_opening<B: TestKit>(subject: &Subject<B>) {
    let mut region = region(subject);
    let mut child = subject.child();
    child.receive::<()>();
    write(subject, &mut region, SEED + 1);
    child.send(());
    child.finish();
    assert!(has(subject, &region, SEED + 1), "the other process has separate memory");
}

fn opens_for_itself<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let mut region = region(subject);
    peer.send(());
    peer.receive::<()>();
    assert!(has(subject, &region, SEED), "the other process has separate memory");
    region.grow_to(subject.units(3)).unwrap();
    region.close(WaitFor::all_devices()).unwrap();
    assert!(subject.backend.drop_log().take_last().is_none());
}
