//! monel: an asynchronous tensor-graph engine with one in-order queue per device, where every result is a `Result`.
//!
//! A program builds a [`Graph`] of ops over [`Tensor`]s, records it once on a [`Device`] and submits the
//! [`Recording`] through a [`Stream`] as often as it likes. Submitting returns when work is committed, not when it is
//! done; results are futures. A fault of a device is an error of the submission it hit, never the end of the process.
//!
//! Data flows one way: `graph → plan → stream → queue → device → kernel`.
//!
//! - [`tensor`]: types, shapes, strides; a tensor is a place in a buffer.
//! - [`graph`], [`ops`]: what shall be computed; each op's shape rule, cost, kernel and reference in one file.
//! - [`plan`]: pure: fused steps, memory by lifetime, barriers where ranges overlap, chunks.
//! - [`stream`], [`queue`]: program order, windows, errors, cancelling; a state machine without foreign calls.
//! - [`device`]: what a device implements, and the devices.
//! - [`check`]: every op on every device against a slow reference in f64.
//!
//! ```
//! use monel::{DType, Graph, device};
//! let device = device::open_cpu()?;
//! let stream = device.stream();
//! let x = device.tensor(DType::F32, &[4])?;
//! let y = device.tensor(DType::F32, &[4])?;
//! let mut graph = Graph::new("double");
//! let (a, b) = (graph.leaf(&x), graph.leaf(&y));
//! let sum = graph.add(a, a)?;
//! graph.copy_into(sum, b)?;
//! let recording = device.record(&graph)?;
//! let bytes: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
//! drop(stream.upload(&x, &bytes)?);
//! drop(stream.submit(&recording)?);
//! let doubled = stream.download(&y)?.wait()?;
//! assert_eq!(doubled[4..8], 4f32.to_le_bytes());
//! # Ok::<(), monel::Error>(())
//! ```

pub mod buffer;
pub mod cancel;
pub mod check;
mod copy_across;
pub mod device;
pub mod error;
pub mod event;
pub mod gpu;
pub mod graph;
pub mod kernel;
pub mod ops;
pub mod plan;
pub mod quant;
pub mod queue;
pub mod recording;
pub mod stream;
pub mod submission;
mod sync;
pub mod tensor;
pub mod trace;
mod upload;

pub use buffer::Buffer;
pub use cancel::CancelToken;
pub use device::{Device, DeviceKind, HostMapping, Mapped, Needs, Settings, Storage};
pub use error::{Error, Place, Result};
pub use event::Event;
pub use graph::{Graph, Value};
pub use recording::Recording;
pub use stream::Stream;
pub use submission::{Download, Submission};
pub use tensor::{DType, Desc, Tensor};
pub use trace::Trace;
