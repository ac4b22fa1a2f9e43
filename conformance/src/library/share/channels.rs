//! Sharing a region between two processes: the channel and its two ends.

use crate::fork_server::Child;
use crate::leaks;
use crate::library::sharing::or_cannot_share;
use crate::library::tools::idle;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{Placement, Properties, Region};
use gpu_vmm_share::{Allowed, Channel, Exporter, ImportOptions, ImportedRegion};
use gpu_vmm_testkit::TestKit;
use std::time::Duration;

/// The maximum time that one side waits for the other.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Opens a channel and sends one end to the second process.
pub(super) fn channel_to(child: &mut Child) -> Channel {
    let (ours, theirs) = Channel::pair().unwrap();
    child.send_fd(theirs.into_socket());
    ours
}

/// The end of a channel that the first process sends.
pub(super) fn channel_from(peer: &Peer) -> Channel {
    Channel::from_socket(peer.receive_fd(), Allowed::same_user()).unwrap()
}

/// Imports a region.
pub(super) fn receive<B: TestKit>(
    subject: &Subject<B>,
    import: ImportOptions,
    channel: Channel,
) -> ImportedRegion<B> {
    let imported = or_cannot_share(subject, import.receive(&subject.backend, channel));
    count_imports(imported.region());
    imported
}

/// Counts the imported pieces of a region for the leak check.
fn count_imports<B: TestKit>(region: &Region<B>) {
    region.mappings().for_each(|_| leaks::counts_import());
}

/// A region of exportable memory, with one handle of each of these sizes in units.
pub(super) fn shareable_region<B: TestKit>(subject: &Subject<B>, handles: &[u64]) -> Region<B> {
    let memory = Properties::on(subject.device).shareable();
    let units = handles.iter().sum();
    let mut region =
        subject.region(units).memory(memory).at(Placement::Exact(subject.hole(units))).build().unwrap();
    for handle in handles {
        or_cannot_share(subject, region.grow_to(region.end() + subject.units(*handle)));
    }
    region
}

/// A region with one exportable handle of one unit, which moves to addresses that are free in the other process too.
pub(super) fn movable_region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let memory = Properties::on(subject.device).shareable();
    let mut region = subject.region(1).memory(memory).at(Placement::Restorable).build().unwrap();
    or_cannot_share(subject, region.grow_to(subject.unit()));
    region
}

/// Moves a [`movable_region`], which has more than one handle afterwards.
pub(super) fn move_away<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>) {
    let old = region.address();
    let wall = subject.region(1).at(Placement::Exact(region.range().end())).build().unwrap();
    or_cannot_share(subject, region.grow_or_move(region.reserved() + subject.unit(), idle()));
    assert_ne!(region.address(), old);
    drop(wall);
}

/// Shares a region and waits until the importer has applied it.
pub(super) fn share<B: TestKit>(subject: &Subject<B>, channel: Channel, region: &Region<B>) -> Exporter<B> {
    let mut exporter = or_cannot_share(subject, Exporter::share(channel, region));
    exporter.wait_applied(SOON).unwrap();
    exporter
}
