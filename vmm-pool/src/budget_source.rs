//! A party that divides memory among pools, such as a server among the programs of a machine.

use gpu_vmm_core::{Bytes, Result};

/// A party that grants a pool its budget, and more of it when a request needs more: [`Pool::set_budget_source`](crate::Pool::set_budget_source).
///
/// It is dropped after the pool's last memory has returned to the driver, in whichever thread returns it.
pub trait BudgetSource: Send + Sync {
    /// Raises the pool's budget, which was `budget`, by at least `missing` bytes with [`Pool::grant_budget`](crate::Pool::grant_budget). If the budget is another one by
    /// now, it may do nothing: the request is tried again.
    ///
    /// The calling thread holds no lock of the pool. The call may wait for others as long as `effort` says.
    ///
    /// # Errors
    ///
    /// Why there is no more.
    fn raise(&self, budget: Bytes, missing: Bytes, effort: BudgetEffort) -> Result<()>;

    /// A request that has called [`raise`](Self::raise), once or several times, has ended: it has used what it got, or failed. Until then, what was
    /// granted for it should not be taken away again.
    fn request_ended(&self) {}
}

/// What a [`BudgetSource`] does for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BudgetEffort {
    /// It grants what is free, and waits for no other pool. The pool has not tried to make do with its budget yet.
    TakeFree,
    /// It asks others to give memory back, and waits for them: the request fails otherwise.
    AskOthers,
}
