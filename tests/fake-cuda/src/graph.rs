//! Graphs: the work that a capture recorded, and its launches.
//!
//! Documented: a graph's nodes run in the order in which they were queued, on each launch with the arguments of the capture.
//! A launch on a capturing stream becomes a part of that stream's graph. Events that are recorded under capture are not
//! nodes.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::code::{Answer, Code};
use crate::objects::Job;
use crate::settings::settings;
use crate::stream;
use crate::violation::refuse;
use crate::work::{queue, work};
use std::sync::Arc;

/// The flags of an instantiation that are known: `AUTO_FREE_ON_LAUNCH`, `UPLOAD`, `DEVICE_LAUNCH` and `USE_NODE_PRIORITY`.
const FLAGS: u64 = 15;

/// Combines all nodes into one task of a stream. Each node takes as long as it would alone.
fn whole(nodes: Vec<Job>) -> Job {
    Arc::new(move || {
        nodes.iter().enumerate().try_for_each(|(place, node)| {
            if place > 0 {
                std::thread::sleep(settings().work_delay);
            }
            node()
        })
    })
}

fn unknown(kind: &str, name: usize) -> Code {
    refuse(Code::INVALID_VALUE, format_args!("{kind} {name:#x} does not exist"))
}

fn launch(exec: usize, raw: usize) -> Answer {
    let mut work = work();
    let (stream, _) = stream::for_work(&mut work, raw)?;
    let nodes = work.execs.get(&exec).ok_or_else(|| unknown("executable graph", exec))?.clone();
    queue(work, stream, whole(nodes));
    Ok(())
}

cuda! {
    /// Creates an executable graph, which is independent of the graph.
    fn cuGraphInstantiateWithFlags(out: Out<'_, usize>, graph: usize, flags: u64) {
        let out = given(out, "phGraphExec")?;
        if flags & !FLAGS != 0 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        let mut work = work();
        let nodes = work.graphs.get(&graph).ok_or_else(|| unknown("graph", graph))?.clone();
        let name = work.new_name();
        work.execs.insert(name, nodes);
        out.write(name);
        Ok(())
    }

    /// Queues the whole graph on a stream.
    fn cuGraphLaunch(exec: usize, raw: usize) {
        launch(exec, raw)
    }

    /// Destroys a graph.
    fn cuGraphDestroy(graph: usize) {
        work().graphs.remove(&graph).map(drop).ok_or_else(|| unknown("graph", graph))
    }

    /// Destroys an executable graph. Its launches continue.
    fn cuGraphExecDestroy(exec: usize) {
        work().execs.remove(&exec).map(drop).ok_or_else(|| unknown("executable graph", exec))
    }
}
