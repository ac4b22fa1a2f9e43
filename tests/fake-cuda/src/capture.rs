//! Stream capture: queued work goes into a graph. `capture_rules` has what captures prohibit.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::capture_rules::{MODE, RELAXED, check_mode, is_implicit};
use crate::code::Code;
use crate::objects::Capture;
use crate::stream;
use crate::work::work;
use std::thread;

cuda! {
    /// Begins a capture.
    fn cuStreamBeginCapture_v2(raw: usize, mode: u32) {
        check_mode(mode)?;
        let mut work = work();
        let name = stream::meant(&mut work, raw)?;
        let (context, own) = (work.streams[&name].context, work.new_name());
        work.check(context)?;
        let is_default = work.contexts.get(&context).is_some_and(|context| context.default == name);
        let Some(stream) = work.streams.get_mut(&name).filter(|stream| !is_default && stream.capture.is_none())
        else {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        };
        let by = thread::current().id();
        stream.capture = Some(Capture { name: own, mode, by, is_spoilt: false, nodes: Vec::new() });
        Ok(())
    }

    /// Ends a capture: returns its graph, or that it was invalidated.
    fn cuStreamEndCapture(raw: usize, graph: Out<'_, usize>) {
        let graph = given(graph, "phGraph")?;
        graph.write(0);
        let mut work = work();
        let name = stream::meant(&mut work, raw)?;
        let Some(stream) = work.streams.get_mut(&name) else { return Err(Code::INVALID_HANDLE) };
        let Some(capture) = &stream.capture else { return Err(Code::STREAM_CAPTURE_UNMATCHED) };
        if capture.mode != RELAXED && capture.by != thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let Some(Capture { nodes, is_spoilt: false, .. }) = stream.capture.take() else {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        };
        let made = work.new_name();
        work.graphs.insert(made, nodes);
        graph.write(made);
        Ok(())
    }

    /// Returns whether a stream captures: no, yes, or invalidated. Fails for a default stream while a blocking
    /// stream of its context captures.
    fn cuStreamIsCapturing(raw: usize, out: Out<'_, u32>) {
        let out = given(out, "captureStatus")?;
        let mut work = work();
        let name = stream::meant(&mut work, raw)?;
        is_implicit(&work, name)?;
        let capture = work.streams.get(&name).and_then(|stream| stream.capture.as_ref());
        out.write(capture.map_or(0, |capture| 1 + u32::from(capture.is_spoilt)));
        Ok(())
    }

    /// Exchanges the thread's capture mode.
    fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut u32>) {
        let mode = given(mode, "mode")?;
        check_mode(*mode)?;
        *mode = MODE.replace(*mode);
        Ok(())
    }
}
