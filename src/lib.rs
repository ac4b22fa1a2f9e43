#![cfg_attr(feature = "host", doc = include_str!("front_page.md"))]
#![cfg_attr(not(feature = "host"), doc = "GPU virtual memory management for NVIDIA and AMD.")]
// A module whose feature is off has no page: its name on the front page leads to the table of features.
#![cfg_attr(all(feature = "host", not(feature = "cuda")), doc = "\n[`cuda`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "hip")), doc = "\n[`hip`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "pool")), doc = "\n[`pool`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "premap")), doc = "\n[`premap`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "serve")), doc = "\n[`serve`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "share")), doc = "\n[`share`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "snapshot")), doc = "\n[`snapshot`]: #features")]
#![cfg_attr(all(feature = "host", not(feature = "dlpack")), doc = "\n[`dlpack`]: #features")]
#![cfg_attr(
    all(feature = "host", not(feature = "experimental-multicast")),
    doc = "\n[`multicast`]: #features"
)]
// Examples use the results that a call asks to look at.
#![doc(test(attr(deny(unused_must_use))))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod any;
mod open;

#[cfg(feature = "experimental-multicast")]
pub use any::AnyMulticast;
pub use any::{AnyBackend, AnyHandle, AnyReservation};
pub use gpu_vmm_core::*;
pub use open::OpenResult;

#[cfg(feature = "cuda")]
#[doc(inline)]
pub use gpu_vmm_cuda as cuda;
#[cfg(feature = "hip")]
#[doc(inline)]
pub use gpu_vmm_hip as hip;
#[cfg(feature = "host")]
#[doc(inline)]
pub use gpu_vmm_host as host;
#[cfg(feature = "pool")]
#[doc(inline)]
pub use gpu_vmm_pool as pool;
#[cfg(feature = "premap")]
#[doc(inline)]
pub use gpu_vmm_premap as premap;
#[cfg(feature = "serve")]
#[doc(inline)]
pub use gpu_vmm_serve as serve;
#[cfg(feature = "share")]
#[doc(inline)]
pub use gpu_vmm_share as share;
#[cfg(feature = "snapshot")]
#[doc(inline)]
pub use gpu_vmm_snapshot as snapshot;

/// Compiles and runs the Rust examples of the README and of the guide.
#[cfg(all(
    doctest,
    feature = "host",
    feature = "pool",
    feature = "serve",
    feature = "share",
    feature = "snapshot"
))]
mod chapters {
    macro_rules! chapters {
        ($($name:ident: $file:literal,)*) => { $(#[doc = include_str!($file)] struct $name;)* };
    }

    chapters! {
        Readme: "../README.md",
        Introduction: "../docs/guide/introduction.md",
        Concepts: "../docs/guide/concepts.md",
        Sizes: "../docs/guide/sizes.md",
        Growing: "../docs/guide/growing.md",
        SameAddress: "../docs/guide/same-address.md",
        Sharing: "../docs/guide/sharing.md",
        Serve: "../docs/guide/serve.md",
        Pool: "../docs/guide/pool.md",
        Troubleshooting: "../docs/guide/troubleshooting.md",
        Porting: "../docs/guide/porting.md",
        Support: "../docs/guide/support.md",
        Performance: "../docs/guide/performance.md",
        Comparisons: "../docs/guide/comparisons.md",
        Deviations: "../docs/guide/deviations.md",
        Conformance: "../docs/guide/conformance.md",
        Command: "../docs/guide/command.md",
    }

    #[cfg(feature = "cuda")]
    chapters! {
        Cudarc: "../docs/guide/cudarc.md",
    }
}
