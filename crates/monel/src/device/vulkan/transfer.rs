//! Transfers: through staging memory to and from the host, by a kernel, or the copy command for odd bytes.
//!
//! A kernel copies on the device five times faster than the copy command does on NVIDIA's GPUs, and as fast over the bus.
//! There the command is not only slow: with uploads of eight threads on the way the first of them did not end in one of
//! sixteen processes (driver 580.159, an H200), whoever recorded and submitted them and in which order; by a kernel in none
//! of 79.
//!
//! The copy command moves any number of bytes from anywhere to anywhere, which filling does not (whole words only), so
//! the ends of a fill are copies from a few staged bytes.

use super::Shared;
use super::commands::{After, Before, Counted, GpuCommands, Kept, barrier};
use super::forecast::Forecast;
use super::memory::{ALIGN, Block, GpuMemory, Use};
use super::record::{Bound, Recipe, Sets, Step};
use crate::device::driver::{DriverBytes, Memory, Region, StagedBytes, Transfer};
use crate::error::{Error, Result};
use crate::gpu::{Dispatch, Memory as Which, Operand, Shader};
use crate::tensor::{DType, Desc};
use ash::vk;
use std::sync::Arc;

/// Bytes of one value that fills are copied from.
const PATTERN: usize = 64 << 10;

/// Copies of one transfer from block to block.
struct Copies {
    from: vk::Buffer,
    to: vk::Buffer,
    list: Vec<vk::BufferCopy>,
}

impl Shared {
    /// Encodes a transfer.
    pub fn encode_transfer(self: &Arc<Self>, transfer: Transfer) -> Result<GpuCommands> {
        match transfer {
            Transfer::Upload { memory, region, bytes } => self.upload(memory, &region, bytes),
            Transfer::Download { memory, region, landing } => {
                let bytes = region.bytes();
                let staging = self.allocator.piece(Use::Staging, "staging for a download", bytes)?;
                let source = GpuMemory::of(&memory, &self.gpu)?;
                let dense = Region::linear(0, bytes);
                let (from, to) = ((source, &region), (&staging, &dense));
                let keep = vec![memory.clone()];
                if let Some(words) = Words::of(from, to)? {
                    let mut made = self.copy_words(words, keep, true)?;
                    made.after = After::Download { staging, landing, bytes };
                    return Ok(made);
                }
                let copies = copies(from, to)?;
                let after = After::Download { staging, landing, bytes };
                self.transfer(&[copies], None, after, keep, Vec::new(), None)
            }
            Transfer::Fill { memory, region, value } => self.fill(memory, &region, value),
            Transfer::Copy { from, to } => {
                let source = GpuMemory::of(&from.0, &self.gpu)?;
                let target = GpuMemory::of(&to.0, &self.gpu)?;
                let keep = vec![from.0.clone(), to.0.clone()];
                if let Some(words) = Words::of((source, &from.1), (target, &to.1))? {
                    return self.copy_words(words, keep, false);
                }
                let copies = copies((source, &from.1), (target, &to.1))?;
                self.transfer(&[copies], None, After::Nothing, keep, Vec::new(), None)
            }
        }
    }

    /// Copies by a kernel; `to_host` where the host reads them.
    fn copy_words(
        self: &Arc<Self>,
        words: Words<'_>,
        keep: Vec<Arc<dyn Memory>>,
        to_host: bool,
    ) -> Result<GpuCommands> {
        let Words { from: (source, mut from), to: (target, mut to), mut bytes, unit } = words;
        let wrong = |reason| Error::Kernel(format!("copy: {reason}"));
        let mut made = Vec::new();
        while bytes > 0 {
            let (x, x_at) = source.window(from);
            let (y, y_at) = target.window(to);
            // No further than both bindings reach.
            let part = bytes.min((self.gpu.max_range() - ALIGN) / unit * unit);
            let desc = Desc::new(DType::I32, &[(part / 4) as usize])?;
            let element = if unit == 16 { "vec4<u32>" } else { "u32" };
            let operand = |offset, memory| Operand { desc, offset, memory };
            let dispatch = Shader::new("copy_bytes", include_str!("copy.wgsl"))
                .number("count", (part / unit) as usize)
                .raw("x", "read", element, &operand(x_at, Which::Input(0)))
                .raw("y", "read_write", element, &operand(y_at, Which::Output))
                .define("UNIT", unit)
                .items((part / unit) as usize, 256)
                .map_err(wrong)?;
            made.push((vec![x, y], dispatch));
            (from, to, bytes) = (from + part, to + part, bytes - part);
        }
        let sets = Sets::new(&self.gpu, made.iter().map(|(bindings, _)| bindings))?;
        let step = |(bindings, dispatch): (Vec<Bound>, Dispatch)| {
            Ok(Step {
                pipeline: self.pipelines.get(&dispatch.source)?,
                set: sets.as_ref().and_then(|s| s.by_bindings.get(&bindings)).copied(),
                immediates: dispatch.immediates,
                groups: dispatch.groups,
                label: "copy".into(),
            })
        };
        let steps = made.into_iter().map(step).collect::<Result<Vec<_>>>()?;
        let buffer = Recipe { levels: vec![steps], to_host }.record(&self.buffers, None)?;
        Ok(GpuCommands {
            buffer,
            after: After::Nothing,
            forecast: Forecast::default(),
            recipe: None,
            kept: Kept {
                sets: sets.map(|s| s.pool),
                memory: keep,
                own: Vec::new(),
                staged: None,
                pipelines: self.pipelines.clone(),
                counted: Counted::new(&self.counts),
            },
        })
    }

    fn upload(
        self: &Arc<Self>,
        memory: Arc<dyn Memory>,
        region: &Region,
        bytes: StagedBytes,
    ) -> Result<GpuCommands> {
        let target = GpuMemory::of(&memory, &self.gpu)?;
        let dense = Region::linear(0, bytes.bytes.len());
        let keep = vec![memory.clone()];
        // What the caller wrote into memory of ours is copied from there.
        let mut own = Vec::new();
        let ours = bytes.bytes.of_driver::<GpuMemory>().filter(|s| s.is_of(&self.gpu));
        if ours.is_none() {
            let mut staging = self.stage(bytes.bytes.len())?;
            staging.bytes_mut().copy_from_slice(&bytes.bytes);
            own.push(staging);
        }
        let Some(staging) = ours.or(own.first()) else { return Err(unseen()) };
        let (from, to) = ((staging, &dense), (target, region));
        if let Some(words) = Words::of(from, to)? {
            let mut made = self.copy_words(words, keep, false)?;
            (made.kept.own, made.kept.staged) = (own, Some(bytes));
            return Ok(made);
        }
        let copies = copies(from, to)?;
        self.transfer(&[copies], None, After::Nothing, keep, own, Some(bytes))
    }

    /// Memory that uploads are staged in, mapped for as long as it lives.
    pub fn stage(&self, bytes: usize) -> Result<GpuMemory> {
        let staging = self.allocator.piece(Use::Staging, "staging for an upload", bytes)?;
        staging.view().ok_or_else(unseen)?;
        Ok(staging)
    }

    /// The whole words of long runs are filled, everything else is copied from a pattern.
    fn fill(self: &Arc<Self>, memory: Arc<dyn Memory>, region: &Region, value: u8) -> Result<GpuCommands> {
        let target = GpuMemory::of(&memory, &self.gpu)?;
        let pattern = self.allocator.piece(Use::Staging, "a pattern", region.row.min(PATTERN))?;
        let bytes = vec![value; pattern.bytes];
        pattern.put(0, &bytes).ok_or_else(unseen)?;
        let mut copies = Copies { from: pattern.block.buffer, to: target.block.buffer, list: Vec::new() };
        let mut fills = Vec::new();
        let mut add = |mut at: u64, mut size: u64| {
            while size > 0 {
                let piece = size.min(pattern.bytes as u64);
                copies.list.push(vk::BufferCopy { src_offset: pattern.offset, dst_offset: at, size: piece });
                (at, size) = (at + piece, size - piece);
            }
        };
        for row in 0..region.rows {
            let start = region.offset + row * region.stride;
            let (start, size) = (target.at(start..start + region.row)?, region.row as u64);
            let (first, last) = (start.next_multiple_of(4), (start + size) / 4 * 4);
            if size >= 1024 {
                add(start, first - start);
                fills.push((first, last - first));
                add(last, start + size - last);
            } else {
                add(start, size);
            }
        }
        let word = u32::from_ne_bytes([value; 4]);
        let keep = vec![memory.clone()];
        let fills = Some((target.block.buffer, fills, word));
        self.transfer(&[copies], fills, After::Nothing, keep, vec![pattern], None)
    }

    #[allow(clippy::type_complexity)]
    fn transfer(
        self: &Arc<Self>,
        copies: &[Copies],
        fills: Option<(vk::Buffer, Vec<(u64, u64)>, u32)>,
        after: After,
        keep: Vec<Arc<dyn Memory>>,
        own: Vec<GpuMemory>,
        staged: Option<StagedBytes>,
    ) -> Result<GpuCommands> {
        let raw = &self.gpu.raw;
        let to_host = matches!(after, After::Download { .. });
        let buffer = self.buffers.record(Before::Copies, |cb| {
            // SAFETY: the buffer is being recorded by this thread, ranges were checked to lie inside their pieces, and
            // what is copied or filled does not overlap, so nothing has to wait for anything.
            unsafe {
                for c in copies.iter().filter(|c| !c.list.is_empty()) {
                    raw.cmd_copy_buffer(cb, c.from, c.to, &c.list);
                }
                if let Some((buffer, ranges, word)) = &fills {
                    for &(at, size) in ranges {
                        raw.cmd_fill_buffer(cb, *buffer, at, size, *word);
                    }
                }
                if to_host {
                    let stage = vk::PipelineStageFlags::TRANSFER;
                    barrier(raw, cb, stage, vk::PipelineStageFlags::HOST);
                }
            }
            Ok(())
        })?;
        Ok(GpuCommands {
            buffer,
            after,
            forecast: Forecast::default(),
            recipe: None,
            kept: Kept {
                sets: None,
                memory: keep,
                own,
                staged,
                pipelines: self.pipelines.clone(),
                counted: Counted::new(&self.counts),
            },
        })
    }

    /// Zeros in new memory, before anything that is committed later.
    pub fn zero(self: &Arc<Self>, memory: &GpuMemory) -> Result<()> {
        if let Some(host) = memory.view() {
            // SAFETY: the piece is new, so nobody else uses its bytes.
            unsafe { host.write_bytes(0, memory.bytes) };
            return Ok(());
        }
        let buffer = self.buffers.record(Before::Copies, |cb| {
            // SAFETY: the piece is a multiple of 256 bytes.
            unsafe {
                let (block, size) = (memory.block.buffer, memory.padded());
                self.gpu.raw.cmd_fill_buffer(cb, block, memory.offset, size, 0);
            }
            Ok(())
        })?;
        self.queue.submit_own(buffer, memory.block.clone())
    }
}

fn unseen() -> Error {
    Error::Kernel("staging memory that the host cannot see".into())
}

/// One run of whole words, for a kernel.
struct Words<'a> {
    from: (&'a Block, u64),
    to: (&'a Block, u64),
    bytes: u64,
    /// Bytes that an invocation moves.
    unit: u64,
}

/// Below this a kernel is not worth its descriptors.
const WORTH: usize = 64;

impl<'a> Words<'a> {
    /// `None` for what the copy command does: several runs, odd ends, few bytes.
    fn of(from: (&'a GpuMemory, &Region), to: (&'a GpuMemory, &Region)) -> Result<Option<Words<'a>>> {
        let bytes = from.1.bytes();
        if bytes < WORTH || !from.1.is_dense() || !to.1.is_dense() {
            return Ok(None);
        }
        let at = |(memory, region): (&GpuMemory, &Region)| memory.at(region.offset..region.offset + bytes);
        let (a, b) = (at(from)?, at(to)?);
        let fits = |unit: &u64| (a | b | bytes as u64).is_multiple_of(*unit);
        let Some(unit) = [16, 4].into_iter().find(fits) else { return Ok(None) };
        Ok(Some(Words { from: (&from.0.block, a), to: (&to.0.block, b), bytes: bytes as u64, unit }))
    }
}

/// Copies between regions with the same number of bytes, whose runs may differ in length.
fn copies(from: (&GpuMemory, &Region), to: (&GpuMemory, &Region)) -> Result<Copies> {
    let ((source, from), (target, to)) = (from, to);
    let mut list = Vec::new();
    let mut at = 0;
    while at < from.bytes() {
        let (fr, fo) = (at / from.row, at % from.row);
        let (tr, target_offset) = (at / to.row, at % to.row);
        // Dense regions are one run.
        let run = |r: &Region, o: usize| if r.is_dense() { r.bytes() - at } else { r.row - o };
        let size = run(from, fo).min(run(to, target_offset));
        let (a, b) = (from.offset + fr * from.stride + fo, to.offset + tr * to.stride + target_offset);
        let (src_offset, dst_offset) = (source.at(a..a + size)?, target.at(b..b + size)?);
        list.push(vk::BufferCopy { src_offset, dst_offset, size: size as u64 });
        at += size;
    }
    Ok(Copies { from: source.block.buffer, to: target.block.buffer, list })
}
