//! Virtual memory and device work: which calls wait for work, and which calls are allowed while a stream captures.

use super::rules;
use crate::driver::lab::{CallResult, Lab, Mapping, Memory, Plain, Reserved, Stream};
use crate::driver::seen::Seen;
use crate::subject::skip;
use gpu_vmm_core::Vendor;
use gpu_vmm_testkit::raw::abi::{self, Code};
use std::time::{Duration, Instant};

rules! { "order":
    /// Memory can be created, mapped and made accessible while a stream works on other memory.
    map_while_busy,
    /// CUDA documents unmapping as synchronous for most uses; HIP's guide says that it lacks synchronization.
    unmap_while_busy ["unmap-does-not-wait"],
    /// In relaxed capture every call is allowed: mapping and unmapping succeed, and the capture continues.
    capture_relaxed,
    /// In thread-local capture the driver may refuse calls that may be unsafe; a call that it does not refuse works.
    capture_of_thread,
    /// In global capture the driver may refuse calls that may be unsafe; a call that it does not refuse works.
    capture_global,
    /// Synchronizing the device is refused while a stream captures.
    synchronize_in_capture,
    /// CUDA: in a forked child the driver is not initialized.
    forked_child ["fork"],
}

/// Creates a stream with enough work to stay busy for a while, all of it on a plain allocation.
fn busy(lab: &Lab) -> (Plain<'_>, Stream<'_>) {
    let size = (lab.memory_info().0 / 4).min(1 << 30);
    let (plain, stream) = (lab.allocate(size), lab.stream());
    let fill = |value| lab.must(lab.set_later(plain.address, value, size, &stream));
    // The first fill may wait for other work.
    fill(0);
    lab.must(stream.wait());
    let began = Instant::now();
    fill(1);
    lab.must(stream.wait());
    let times = Duration::from_millis(150).as_nanos() / began.elapsed().as_nanos().max(1);
    (0..times.clamp(2, 250) as u8).for_each(fill);
    if !stream.is_busy() {
        skip("the work ends before the rule can make its calls");
    }
    (plain, stream)
}

/// Records whether the stream was still busy when a call returned. Returns true if it was.
fn note(seen: &mut Seen, what: &str, stream: &Stream<'_>) -> bool {
    let busy = stream.is_busy();
    let when =
        if busy { "returned while the stream was at work" } else { "returned when the stream was done" };
    seen.note(format!("{what}: {when}"));
    busy
}

fn map_while_busy(lab: &Lab, seen: &mut Seen) {
    let (_plain, stream) = busy(lab);
    let reserved = lab.addresses(1);
    let memory = lab.memory(1);
    note(seen, "reserve and create", &stream);
    let mapping = lab.map(reserved.base, &memory);
    note(seen, "map", &stream);
    seen.accepted("access", lab.set_access(mapping.at, mapping.size, &[lab.grant(abi::RW)]));
    note(seen, "set access", &stream);
    seen.accepted("the stream's end", stream.wait());
    seen.accepted("a fill", lab.set(mapping.at, 7, mapping.size));
}

fn unmap_while_busy(lab: &Lab, seen: &mut Seen) {
    // The work does not use this memory, so it cannot fault if unmapping does not wait.
    let (reserved, memory) = (lab.addresses(1), lab.memory(1));
    let mapping = lab.map_rw(reserved.base, &memory);
    let (_plain, stream) = busy(lab);
    drop(mapping);
    match (note(seen, "unmap", &stream), lab.vendor()) {
        (true, Vendor::Cuda) => seen.deviates("it is called synchronous, and waits for no stream"),
        (true, _) => seen.shows("it waits for no such stream, as documented"),
        (false, _) => {}
    }
    seen.accepted("the stream's end", stream.wait());
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, `_THREAD_LOCAL` and `_RELAXED`.
const GLOBAL: i32 = 0;
const THREAD: i32 = 1;
const RELAXED: i32 = 2;

/// The objects of a mapping. They are released after the capture, because a capture may refuse that too.
#[derive(Default)]
struct Life<'a> {
    mapping: Option<Mapping<'a>>,
    memory: Option<Memory<'a>>,
    reserved: Option<Reserved<'a>>,
}

impl<'a> Life<'a> {
    /// Reserves, creates, maps, sets access and unmaps. Returns the access that was read back in between.
    fn live(&mut self, lab: &'a Lab) -> CallResult<i32> {
        let at = self.reserved.insert(lab.reserve(lab.unit, 0, 0, 0)?).base;
        let memory = self.memory.insert(lab.create(lab.unit, &lab.prop(), 0)?);
        lab.map_raw(at, memory.size, 0, memory.handle, 0)?;
        let mapping = self.mapping.insert(Mapping::new(lab, at, memory.size));
        lab.set_access(at, mapping.size, &[lab.grant(abi::RW)])?;
        let flags = lab.access_at(at)?;
        lab.unmap(at, mapping.size)?;
        self.mapping.take().into_iter().for_each(Mapping::forget);
        Ok(flags)
    }
}

/// Creates and removes a mapping while a stream captures. If the mode allows it, a refusal because of the capture is as
/// documented.
fn in_capture(lab: &Lab, seen: &mut Seen, mode: i32) {
    let stream = lab.stream();
    let mut life = Life::default();
    let capture = lab.capture(&stream, mode);
    let lived = life.live(lab);
    let ended = capture.end();
    let may_refuse = mode != RELAXED;
    match lived {
        Ok(flags) => {
            seen.holds(flags == abi::RW, || format!("the access read back is {flags}"));
            seen.accepted("the end of the capture", ended);
        }
        Err(refusal) if may_refuse && refusal.code.is_of_capture() => {
            let then =
                ended.map_or_else(|refusal| refusal.to_string(), |()| "the capture went on".to_owned());
            seen.note(format!("{refusal}; then {then}"));
        }
        Err(refusal) => seen.deviates(refusal.to_string()),
    }
}

fn capture_relaxed(lab: &Lab, seen: &mut Seen) {
    in_capture(lab, seen, RELAXED);
}

fn capture_of_thread(lab: &Lab, seen: &mut Seen) {
    in_capture(lab, seen, THREAD);
}

fn capture_global(lab: &Lab, seen: &mut Seen) {
    in_capture(lab, seen, GLOBAL);
}

fn synchronize_in_capture(lab: &Lab, seen: &mut Seen) {
    let stream = lab.stream();
    let capture = lab.capture(&stream, GLOBAL);
    let documented = [Code::CAPTURE_UNSUPPORTED, Code::CAPTURE_INVALIDATED];
    seen.refused("waiting for the device", lab.synchronize(), &documented);
    match capture.end() {
        Ok(()) => seen.note("the capture went on"),
        Err(refusal) => seen.note(format!("then {refusal}")),
    }
}

#[allow(unsafe_code)] // forks
fn forked_child(lab: &Lab, seen: &mut Seen) {
    lab.not(Vendor::Hip, "HIP does not document forked children, and may hang in one");
    // SAFETY: the child makes one call and ends. If another thread held a lock during the fork, the child hangs, and the
    // rule with it.
    match unsafe { libc::fork() } {
        -1 => skip("the process cannot fork"),
        0 => {
            let code = match lab.create(lab.unit, &lab.prop(), 0) {
                Ok(_) => 0,
                Err(refusal) => refusal.code.0,
            };
            // SAFETY: ends the child without the parent's exit handlers and buffers.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child belongs to this process.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            let answered = libc::WIFEXITED(status).then(|| Code(libc::WEXITSTATUS(status)));
            match answered {
                Some(Code::NOT_INITIALIZED) => seen.shows("it is not initialised there"),
                other => seen.deviates(format!("creating memory there returned {other:?}")),
            }
        }
    }
}
