//! Events of which a call is refused: what the error says about the event, and the state after it. And events of copies.

use crate::failures::{logged, told};
use crate::rig::{Must, ONE, Rig, ZERO, units};
use gpu_vmm_core::{Backend, Bytes, CopyCalls, Event, Operation, Stream, SyncCalls};
use gpu_vmm_test_settings::cases;

cases! {
    failed_event_names_its_device
        [REFUSES = "hipEventCreateWithFlags:1:999,hipEventRecord:1:999,hipStreamWaitEvent:1:999,\
                    hipEventQuery:1:600,hipEventQuery:2:999,hipEventSynchronize:1:999,hipEventDestroy:1:999"];
    event_of_lost_device_is_done [REFUSES = "hipEventQuery:1:719,hipEventSynchronize:1:700,hipEventDestroy:1:719"];
    copy_stream_records_its_copies;
}

/// The event belongs to another device than the thread's current one, and is recorded on that device's null stream.
fn failed_event_names_its_device(rig: &mut Rig) {
    let created = told(rig.backend.event(ONE).map(drop));
    let expected = (Operation::CreateEvent, "hipEventCreateWithFlags", "device 1".to_owned());
    assert_eq!(created, expected);
    let mut event = rig.backend.event(ONE).must("an event");
    let recorded = told(event.record(Stream::DEFAULT));
    event.record(Stream::DEFAULT).must("recorded");
    let held = told(event.hold(Stream::DEFAULT));
    event.hold(Stream::DEFAULT).must("held");
    assert!(!event.is_done().must("the code of unfinished work is no error"));
    let asked = told(event.is_done());
    assert!(event.is_done().must("an answer"));
    let waited = told(event.wait());
    event.wait().must("waited");
    drop(event);
    let expected = [
        (recorded, Operation::RecordEvent, "hipEventRecord"),
        (held, Operation::StreamWaitEvent, "hipStreamWaitEvent"),
        (asked, Operation::QueryEvent, "hipEventQuery"),
        (waited, Operation::WaitForEvent, "hipEventSynchronize"),
        (logged(rig), Operation::DestroyEvent, "hipEventDestroy"),
    ];
    for ((operation, call, context), is_operation, is_call) in expected {
        assert_eq!((operation, call), (is_operation, is_call));
        assert!(context.starts_with("event 0x") && context.ends_with(" of device 1"), "{context}");
    }
    rig.left.others[5] = 1;
}

/// A lost device runs no work, so its events count as done. The refused `hipEventDestroy` leaves the event in the fake.
fn event_of_lost_device_is_done(rig: &mut Rig) {
    let mut event = rig.backend.event(ONE).must("an event");
    event.record(Stream::DEFAULT).must("recorded");
    assert!(event.is_done().must("the loss is no error"));
    event.wait().must("the loss is no error");
    drop(event);
    assert_eq!(rig.backend.drop_log().count(), 0);
    rig.left.others[5] = 1;
}

/// The fake driver copies when a call waits for the copy's stream, by itself or by an event on it.
fn copy_stream_records_its_copies(rig: &mut Rig) {
    const SIZE: Bytes = Bytes(4);
    let mut region = rig.region(1).build().must("addresses");
    region.grow_to(units(1)).must("growth");
    let (at, pinned) = (region.address(), rig.backend.pin(units(1)).must("pinned"));
    let host = pinned.start().as_ptr();
    let mut event = rig.backend.event(ZERO).must("an event");
    let [mut first, mut second] = [(); 2].map(|()| rig.backend.copy_stream(ZERO).must("a copy stream"));
    // SAFETY: the unit is mapped for the device, and no other code uses the pinned memory; the event is of the same backend.
    unsafe {
        rig.backend.copy_from_host(ZERO, at, &[7; 4]).must("written");
        let mut queue = |event: &mut dyn Event| {
            host.cast::<[u8; 4]>().write([0; 4]);
            first.copy_to_host(host, at, SIZE).must("queued");
            assert_eq!(host.cast::<[u8; 4]>().read(), [0; 4], "nothing has waited");
            first.record(event).must("recorded");
        };
        queue(&mut *event);
        second.hold(&*event).must("held");
        assert_eq!(host.cast::<[u8; 4]>().read(), [7; 4], "the other stream waits for the copy");
        queue(&mut *event);
        event.wait().must("waited");
        assert_eq!(host.cast::<[u8; 4]>().read(), [7; 4], "the event is of the copy");
    }
}
