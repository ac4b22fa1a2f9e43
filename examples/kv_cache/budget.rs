//! A budget that other processes change: a file with a number of bytes, which a controller of all servers of a device replaces.
//!
//! A server reads it before each step. A smaller budget takes effect as sequences are evicted or end; their pages then return to
//! the device, and other processes can use them.

use gpu_vmm::{Backend, Bytes, PageList, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

/// The file, and the budget that was last read from it.
#[derive(Debug)]
pub struct BudgetFile {
    path: PathBuf,
    /// Smaller budgets are raised to this one, with which the server can still make progress.
    least: Bytes,
    last: Mutex<Bytes>,
}

impl BudgetFile {
    /// Creates the file with a first budget.
    pub fn create(path: PathBuf, first: Bytes, least: Bytes) -> io::Result<Self> {
        fs::write(&path, first.0.to_string())?;
        Ok(Self { path, least, last: Mutex::new(first) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the budget of the pages to the file's number, if it has changed. A file that is missing or has no number changes nothing.
    pub fn apply<B: Backend>(&self, pages: &PageList<B>) -> Result<()> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let Ok(bytes) = text.trim().parse() else { return Ok(()) };
        let budget = Bytes(bytes).max(self.least);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != budget {
            pages.set_budget(budget)?;
            println!("the budget is now {budget}");
            *last = budget;
        }
        Ok(())
    }
}

impl Drop for BudgetFile {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path); // it may be gone
    }
}
