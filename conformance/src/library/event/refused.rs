//! Calls that fail because of their arguments or in the driver.

use super::{default, event_on};
use crate::case::cases;
use crate::library::flights::own;
use crate::library::tools::refused;
use crate::subject::Subject;
use gpu_vmm_core::{Detail, DeviceId, Error, Operation, SyncCalls};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "event":
    /// Creating an event or a stream on a device that does not exist, or on the host, is refused.
    a_device_that_is_not_there,
    /// Recording an event on a stream of another device is refused, and the event's state is unchanged.
    a_stream_of_another_device,
    /// If a driver call for an event fails, the operation has no effect, and the same call succeeds afterwards.
    each_call_can_fail,
}

fn a_device_that_is_not_there<B: TestKit>(subject: &Subject<B>) {
    for missing in [DeviceId(subject.backend.devices().len() as u32), DeviceId::HOST] {
        // For the host, `Backend::device` says instead why it is no device.
        refused!(@CreateEvent subject.backend.event(missing), Detail::NoSuchDevice { .. } | Detail::Unsupported { .. });
        refused!(@CreateStream subject.backend.own_stream(missing), Detail::NoSuchDevice { .. } | Detail::Unsupported { .. });
    }
}

fn a_stream_of_another_device<B: TestKit>(subject: &Subject<B>) {
    let (device, other) = subject.two_devices();
    let mut event = event_on(subject, device);
    let [ours, theirs] = [device, other].map(|device| subject.backend.own_stream(device).unwrap());
    for _ in 0..2 {
        let refused = event.record(theirs.stream());
        let Err(Detail::ForeignStream { theirs: named, ours: own }) = refused.as_ref().map_err(Error::detail)
        else {
            panic!("{refused:?}")
        };
        assert!(named.starts_with(&other.to_string()) && own.starts_with(&device.to_string()), "{refused:?}");
        refused!(refused, Detail::ForeignStream { .. }, device, other);
        assert!(event.is_done().unwrap());
        event.wait().unwrap();
        event.record(ours.stream()).unwrap();
        event.wait().unwrap();
    }
}

fn each_call_can_fail<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let own = own(subject);
    let fails = |call: Operation, answer: gpu_vmm_core::Result<()>| {
        assert_eq!(answer.unwrap_err().driver_error().unwrap().call, call.name());
        assert_eq!(backend.stop(), 1, "no other call was made");
    };
    backend.fail(0, 1);
    fails(Operation::CreateEvent, backend.event(subject.device).map(drop));
    backend.fail(0, 1);
    fails(Operation::QueryCapture, backend.is_capturing(own.stream()).map(drop));
    let mut event = backend.event(subject.device).unwrap();
    for stream in [own.stream(), default()] {
        backend.fail(0, 1);
        fails(Operation::RecordEvent, event.record(stream));
        assert!(event.is_done().unwrap(), "no position was marked");
        event.record(stream).unwrap();
        backend.fail(0, 1);
        fails(Operation::WaitForEvent, event.wait());
        event.wait().unwrap();
        backend.fail(0, 1);
        fails(Operation::QueryEvent, event.is_done().map(drop));
        assert!(event.is_done().unwrap());
        backend.fail(0, 1);
        fails(Operation::StreamWaitEvent, event.hold(stream));
        event.hold(stream).unwrap();
        backend.synchronize_stream(DeviceId(0), stream).unwrap();
    }
}
