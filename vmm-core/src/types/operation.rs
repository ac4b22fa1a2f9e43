//! The operations of gpu-vmm and their names in error texts and reports.

use std::fmt;

macro_rules! operations {
    ($($(#[$meta:meta])* $variant:ident => $name:literal,)*) => {
        /// An operation of gpu-vmm. [`Error::operation`](crate::Error::operation) returns it, and every error text begins with
        /// its name.
        ///
        /// Prints as its name in lower case:
        ///
        /// ```
        /// # use gpu_vmm_core as gpu_vmm;
        /// use gpu_vmm::Operation;
        /// assert_eq!(Operation::SetAccess.to_string(), "set access");
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Operation {
            $($(#[$meta])* #[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Operation {
            /// Returns the name in lower case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

operations! {
    // opening
    Open => "open",
    QueryDevice => "query device",
    QueryCapabilities => "query capabilities",
    QueryMemory => "query memory",
    QueryPeerAccess => "query peer access",
    QueryGranularity => "query granularity",
    // physical memory, addresses, mappings
    CreateMemory => "create memory",
    ReleaseMemory => "release memory",
    ExportMemory => "export memory",
    ExportDmaBuf => "export dma-buf",
    ImportMemory => "import memory",
    AdoptMemory => "adopt memory",
    Reserve => "reserve",
    FreeReservation => "free reservation",
    ReturnMemory => "return memory",
    RegainAddresses => "regain addresses",
    Map => "map",
    Unmap => "unmap",
    SetAccess => "set access",
    QueryAccess => "query access",
    Allocate => "allocate",
    Free => "free",
    FindAddress => "find address",
    // contents
    Copy => "copy",
    CopyToHost => "copy to host",
    CopyFromHost => "copy from host",
    QueueCopyToHost => "queue copy to host",
    QueueCopyFromHost => "queue copy from host",
    FinishCopies => "finish copies",
    Fill => "fill",
    Read => "read",
    Write => "write",
    PinMemory => "pin memory",
    FreePinned => "free pinned memory",
    // streams, events, contexts, captures
    CreateStream => "create stream",
    UseStream => "use stream",
    DestroyStream => "destroy stream",
    QueryStream => "query stream",
    WaitForStream => "wait for stream",
    StreamWaitEvent => "make stream wait for event",
    CreateEvent => "create event",
    DestroyEvent => "destroy event",
    RecordEvent => "record event",
    QueryEvent => "query event",
    WaitForEvent => "wait for event",
    WaitForDevice => "wait for device",
    QueryCapture => "query capture",
    BeginCapture => "begin capture",
    RestoreCaptureMode => "restore capture mode",
    EndCapture => "end capture",
    LaunchGraph => "launch graph",
    DestroyGraph => "destroy graph",
    CreateContext => "create context",
    DestroyContext => "destroy context",
    EnterContext => "enter context",
    LeaveContext => "leave context",
    SetDevice => "set device",
    // regions
    Grow => "grow",
    Extend => "extend",
    Resize => "resize",
    Shrink => "shrink",
    Swap => "swap",
    MoveToDevice => "move to device",
    Suspend => "suspend",
    Resume => "resume",
    // banks
    AddBank => "add bank",
    SelectBank => "select bank",
    HideBank => "hide bank",
    RemoveBank => "remove bank",
    // several regions
    LockRegion => "lock region",
    // kept contents, tensors
    KeepContents => "keep contents",
    FreeContents => "free kept contents",
    PoisonMemory => "poison memory",
    ExportTensor => "export tensor",
    ViewMemory => "view memory",
    Collect => "collect memory",
    LogFailure => "log failure",
    // multicast
    CreateMulticast => "create multicast object",
    ImportMulticast => "import multicast object",
    ReleaseMulticast => "release multicast object",
    QueryMulticast => "query multicast granularity",
    AddDevice => "add device",
    Bind => "bind",
    Unbind => "unbind",
    MapMulticast => "map multicast object",
    // test kernels
    WritePattern => "write pattern",
    CheckPattern => "check pattern",
    WalkList => "walk list",
    CompileKernels => "compile kernels",
    // regions and memory between processes
    Listen => "listen",
    Accept => "accept connection",
    CreateChannel => "create channel",
    Connect => "connect",
    Offer => "offer region",
    ShareRegion => "share region",
    OfferMemory => "offer memory",
    ReadOffer => "read offer",
    ImportOffer => "import offer",
    Publish => "publish change",
    Receive => "receive change",
    ReceiveRegion => "receive region",
    ApplyChange => "apply change",
    WaitApplied => "wait until applied",
    RequestRelease => "request release",
    ReleaseImport => "release import",
    WaitReleased => "wait for release",
    SendMemory => "send memory",
    ReceiveMemory => "receive memory",
    DuplicateHandle => "duplicate handle",
    QueryProcess => "query process",
    // the server of memory and its clients
    Serve => "serve",
    ConnectPool => "connect pool",
    OpenLease => "open lease",
    CreateRegion => "create region",
    RenewMemory => "renew memory",
    Commit => "commit epoch",
    DowngradeLease => "downgrade lease",
    DropRegion => "drop region",
    DigestRegion => "digest region",
    HandOver => "hand over",
    LoadRegion => "load region",
    SaveRegion => "save region",
    ListRegions => "list regions",
    // snapshots
    TakeSnapshot => "take snapshot",
    WriteSnapshot => "write snapshot",
    OpenSnapshot => "open snapshot",
    ReadSnapshot => "read snapshot",
    Restore => "restore snapshot",
    // pools
    CreatePool => "create pool",
    DropPool => "drop pool",
    QueryPool => "query pool",
    RegisterStream => "register stream",
    UnregisterStream => "unregister stream",
    RecordUse => "record use",
    QueryTag => "query tag",
    TagMemory => "tag memory",
    StartThread => "start thread",
    FindBlock => "find block",
    KeepBlock => "keep block",
    Trim => "trim",
    SetBudget => "set budget",
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
