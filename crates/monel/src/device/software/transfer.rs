//! Transfers of the software device: plain copies by the queue's thread, in their turn.

use super::memory::HostMemory;
use crate::device::Counts;
use crate::device::driver::{Memory, Region, Transfer};
use crate::error::{Error, Result};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// A transfer that runs once; what it holds is released when it has run (contract T4).
pub struct SoftTransfer {
    transfer: Mutex<Option<Transfer>>,
    counts: Arc<Counts>,
}

impl Drop for SoftTransfer {
    fn drop(&mut self) {
        self.counts.commands.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SoftTransfer {
    pub fn new(transfer: Transfer, counts: Arc<Counts>) -> Result<SoftTransfer> {
        match &transfer {
            Transfer::Upload { memory, region, .. }
            | Transfer::Download { memory, region, .. }
            | Transfer::Fill { memory, region, .. } => check(memory, region)?,
            Transfer::Copy { from, to } => {
                check(&from.0, &from.1)?;
                check(&to.0, &to.1)?;
            }
        }
        counts.commands.fetch_add(1, Ordering::AcqRel);
        Ok(SoftTransfer { transfer: Mutex::new(Some(transfer)), counts })
    }

    /// Moves the bytes.
    pub fn run(&self) -> Result<()> {
        let transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match transfer {
            Some(Transfer::Upload { memory, region, bytes: staged }) => {
                let mut from = staged.bytes.chunks_exact(region.row.max(1));
                each(&memory, &region, |to| {
                    let Some(run) = from.next() else { return };
                    // SAFETY: `each` gives a run of `region.row` bytes inside the memory; the queue's order makes this
                    // thread the only one on it.
                    unsafe { std::ptr::copy_nonoverlapping(run.as_ptr(), to, run.len()) };
                })
            }
            Some(Transfer::Download { memory, region, landing }) => {
                check_mapping(&memory)?;
                let mut landing = landing.lock().unwrap_or_else(PoisonError::into_inner);
                landing.clear();
                landing
                    .try_reserve_exact(region.bytes())
                    .map_err(|_| Error::host_memory("a download", region.bytes()))?;
                each(&memory, &region, |from| {
                    // SAFETY: as above, for reading.
                    landing.extend_from_slice(unsafe { std::slice::from_raw_parts(from, region.row) });
                })
            }
            Some(Transfer::Fill { memory, region, value }) => each(&memory, &region, |to| {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to, value, region.row) };
            }),
            Some(Transfer::Copy { from: (source, from), to: (target, to) }) => {
                check_mapping(&source)?;
                copy(&source, &from, &target, &to)
            }
            None => Ok(()),
        }
    }
}

fn check(memory: &Arc<dyn Memory>, region: &Region) -> Result<()> {
    HostMemory::of(memory)?.at(region.range()).map(|_| ())
}

fn check_mapping(memory: &Arc<dyn Memory>) -> Result<()> {
    match HostMemory::of(memory)?.mapping() {
        Some((mapping, end)) => crate::device::mapped::check_mapping(mapping, end),
        None => Ok(()),
    }
}

fn each(memory: &Arc<dyn Memory>, region: &Region, mut run: impl FnMut(*mut u8)) -> Result<()> {
    let memory = HostMemory::of(memory)?;
    for r in 0..region.rows {
        let start = region.offset + r * region.stride;
        run(memory.at(start..start + region.row)?);
    }
    Ok(())
}

/// Copies between regions whose runs may differ in length: byte ranges are matched up.
fn copy(source: &Arc<dyn Memory>, from: &Region, target: &Arc<dyn Memory>, to: &Region) -> Result<()> {
    let (source, target) = (HostMemory::of(source)?, HostMemory::of(target)?);
    let mut at = 0;
    while at < from.bytes() {
        let (fr, fo) = (at / from.row, at % from.row);
        let (tr, to_offset) = (at / to.row, at % to.row);
        let len = (from.row - fo).min(to.row - to_offset);
        let (a, b) = (from.offset + fr * from.stride + fo, to.offset + tr * to.stride + to_offset);
        let (a, b) = (source.at(a..a + len)?, target.at(b..b + len)?);
        // SAFETY: both ranges lie inside; the stream refused regions that overlap.
        unsafe { std::ptr::copy_nonoverlapping(a, b, len) };
        at += len;
    }
    Ok(())
}
