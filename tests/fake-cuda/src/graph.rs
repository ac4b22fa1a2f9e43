//! Graphs: what a capture has recorded, and what is launched of it.
//!
//! Documented: a graph's nodes run in the order in which they were queued, on each launch with the arguments of the capture; a
//! launch on a stream that captures becomes a part of that one's graph. Events that are recorded under capture are no nodes.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::code::{Answer, Code};
use crate::settings::settings;
use crate::stream;
use crate::violation::refuse;
use crate::work::{Job, queue, work};
use std::sync::Arc;

/// The flags of an instantiation that are known: `AUTO_FREE_ON_LAUNCH`, `UPLOAD`, `DEVICE_LAUNCH` and `USE_NODE_PRIORITY`.
const FLAGS: u64 = 15;

/// All nodes as one task of a stream. Each takes as long as it would by itself.
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
    refuse(Code::INVALID_VALUE, format_args!("there is no {kind} {name:#x}"))
}

fn launch(exec: usize, raw: usize) -> Answer {
    let mut work = work();
    let (stream, _) = stream::for_work(&mut work, raw)?;
    let nodes = work.execs.get(&exec).ok_or_else(|| unknown("executable graph", exec))?.clone();
    queue(work, stream, whole(nodes));
    Ok(())
}

cuda! {
    /// Makes a graph ready to be launched; the graph itself is not needed for it any more.
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

    /// Queues all of it on a stream.
    fn cuGraphLaunch(exec: usize, raw: usize) {
        launch(exec, raw)
    }

    /// Gives a graph up.
    fn cuGraphDestroy(graph: usize) {
        work().graphs.remove(&graph).map(drop).ok_or_else(|| unknown("graph", graph))
    }

    /// Gives one up that can be launched. What was launched goes on.
    fn cuGraphExecDestroy(exec: usize) {
        work().execs.remove(&exec).map(drop).ok_or_else(|| unknown("executable graph", exec))
    }
}
