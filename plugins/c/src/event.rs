//! Events: positions in the work of a stream that can be queried and waited for.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::{held, status};
use crate::handles::{Kind, Object};
use crate::status::Status;
use crate::texts::{clear, give, give_box, object, take_box};
use gpu_vmm::extend::Lock;
use gpu_vmm::{AnyBackend, DeviceId, Event as Marks, Operation, Stream, SyncCalls as _};
use std::ffi::c_void;

/// An event of one device. CUDA: CUevent; HIP: hipEvent_t. Calls of several threads take turns.
#[derive(Debug)]
pub struct Event {
    pub(crate) backend: AnyBackend,
    pub(crate) state: Lock<Box<dyn Marks>>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Event {
    const KIND: Kind = Kind::Event;
}

/// Creates an event, which is done until it is recorded. Free it with gpu_vmm_event_free.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE.
///
/// # Safety
///
/// `backend` is null or an open backend. `event` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_event_new(
    backend: *const Backend,
    device: u32,
    event: *mut *mut Event,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(event) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            give_box("event", event, || {
                let state = Lock::new(backend.event(DeviceId(device))?);
                Ok(Event { backend: backend.clone(), state })
            })
        }
    })
}

/// Frees an event. Streams that wait for it still do. Null does nothing.
///
/// # Safety
///
/// `event` is null or comes from gpu_vmm_event_new, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_event_free(event: *mut Event) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(event) }
}

/// Records the work that is queued on a stream now. Null is the default stream of the event's device.
///
/// Returns GPU_VMM_INVALID_ARGUMENT for a stream of another device.
///
/// # Safety
///
/// `event` is null or an event. `stream` is null or a live CUstream or hipStream_t of the event's vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_event_record(event: *const Event, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (event, stream) = unsafe { (object("event", event)?, Stream::from_raw(stream)) };
        Ok(held(&event.state, Operation::RecordEvent)?.record(stream)?)
    })
}

/// Returns whether the recorded work is done. Nothing recorded, and a lost device, count as done.
///
/// # Safety
///
/// `event` is null or an event. `done` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_event_done(event: *const Event, done: *mut bool) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(done) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("done", done, held(&object("event", event)?.state, Operation::QueryEvent)?.is_done()?) }
    })
}

/// Waits until the recorded work is done. Other calls with the event wait meanwhile.
///
/// # Safety
///
/// `event` is null or an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_event_wait(event: *const Event) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let event = unsafe { object("event", event) }?;
        Ok(held(&event.state, Operation::WaitForEvent)?.wait()?)
    })
}

/// Makes all work that is queued on a stream from now on wait for the recorded work. The CPU does not wait.
///
/// # Safety
///
/// `event` is null or an event. `stream` is null or a live CUstream or hipStream_t of the event's vendor, of any device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_event_hold(event: *const Event, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (event, stream) = unsafe { (object("event", event)?, Stream::from_raw(stream)) };
        Ok(held(&event.state, Operation::StreamWaitEvent)?.hold(stream)?)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::handles;
    use crate::status::GPU_VMM_OK;
    use gpu_vmm::Vendor;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    /// An event that is done after a wait, and notes its calls.
    #[derive(Debug, Default)]
    struct Notes(AtomicBool, Arc<Mutex<Vec<String>>>);

    impl Notes {
        fn note(&self, call: &str, stream: Option<Stream<'_>>) {
            let stream = stream.map(|stream| format!(" {}", stream.as_raw().addr())).unwrap_or_default();
            self.1.lock().unwrap().push(format!("{call}{stream}"));
        }
    }

    // SAFETY: nothing relies on the results of this event.
    unsafe impl Marks for Notes {
        fn record(&mut self, stream: Stream<'_>) -> gpu_vmm::Result<()> {
            self.note("record", Some(stream));
            self.0.store(false, Ordering::Relaxed);
            Ok(())
        }

        fn is_done(&self) -> gpu_vmm::Result<bool> {
            Ok(self.0.load(Ordering::Relaxed))
        }

        fn wait(&self) -> gpu_vmm::Result<()> {
            self.note("wait", None);
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }

        fn hold(&self, stream: Stream<'_>) -> gpu_vmm::Result<()> {
            self.note("hold", Some(stream));
            Ok(())
        }
    }

    #[test]
    fn each_call_reaches_the_event() {
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let state = Lock::new(Box::new(Notes(AtomicBool::new(false), Arc::clone(&calls))) as Box<dyn Marks>);
        let event = handles::add(Event { backend: AnyBackend::open(Vendor::Host).unwrap(), state }).unwrap();
        let stream = std::ptr::without_provenance_mut;
        let mut done = [true, false, true];
        // SAFETY: the places are writable, no stream is dereferenced, and the event is freed last.
        unsafe {
            assert_eq!(gpu_vmm_event_done(event, &raw mut done[0]), GPU_VMM_OK);
            assert_eq!(gpu_vmm_event_wait(event), GPU_VMM_OK);
            assert_eq!(gpu_vmm_event_done(event, &raw mut done[1]), GPU_VMM_OK);
            assert_eq!(gpu_vmm_event_record(event, stream(4096)), GPU_VMM_OK);
            assert_eq!(gpu_vmm_event_done(event, &raw mut done[2]), GPU_VMM_OK);
            assert_eq!(gpu_vmm_event_hold(event, stream(8192)), GPU_VMM_OK);
            gpu_vmm_event_free(event);
        }
        assert_eq!(done, [false, true, false]);
        assert_eq!(*calls.lock().unwrap(), ["wait", "record 4096", "hold 8192"]);
    }
}
