//! Devices to test, a way to keep each busy, and small graphs and ops.

use monel::device::scripted::{self, Background, Script};
use monel::device::software::{self, Options};
use monel::device::{Device, Settings, Storage};
use monel::kernel::{Call, Kernel, RefTensor};
use monel::ops::{Cost, Op};
use monel::{DType, Desc, Error, Graph, Recording, Result, Stream, Tensor, Value};
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A device that runs by itself, whatever it is.
pub struct Rig {
    pub name: String,
    pub device: Device,
    background: Mutex<Option<(Script, Option<Background>)>>,
    #[cfg(feature = "vulkan")]
    holder: Option<monel::device::vulkan::Holder>,
    #[cfg(feature = "vulkan")]
    #[allow(dead_code, reason = "ends when it is dropped, after the device")]
    turn: Option<Turn>,
}

/// One test at a time has a GPU. A device that a test holds makes NVIDIA's driver wait, in the middle of closing another
/// device of the process, under a lock that the holder needs to go on. (Only tests hold devices: the engine never commits
/// work that waits for the host.)
#[cfg(feature = "vulkan")]
pub struct Turn {
    _guard: std::sync::MutexGuard<'static, ()>,
}

#[cfg(feature = "vulkan")]
impl Turn {
    /// `None` where this thread has it already.
    fn take() -> Option<Turn> {
        static TURN: Mutex<()> = Mutex::new(());
        if TAKEN.replace(true) {
            return None;
        }
        Some(Turn { _guard: TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner) })
    }
}

#[cfg(feature = "vulkan")]
impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.set(false);
    }
}

#[cfg(feature = "vulkan")]
thread_local! {
    static TAKEN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Options with a small budget of everything.
pub fn options() -> Options {
    let settings = Settings { encode_helpers: 1, ..Settings::default() };
    Options { threads: 1, settings, ..Options::default() }
}

/// Every device: to add one, add it here. `MONEL_CONTRACT_ON=vulkan` leaves out those that need no validation layers.
pub fn rigs(options: &Options) -> Vec<Rig> {
    if std::env::var("MONEL_CONTRACT_ON").as_deref() == Ok("vulkan") {
        return vulkan_rig(options).into_iter().collect();
    }
    let mut rigs = host_rigs(options);
    rigs.extend(vulkan_rig(options));
    rigs
}

/// A Vulkan device, unless the test is about limits that are settings of the software device. A machine without one
/// skips it and says so; with `MONEL_REQUIRE_VULKAN` that fails the test. `MONEL_VULKAN_DEVICE` is its number.
#[cfg(feature = "vulkan")]
fn vulkan_rig(options: &Options) -> Option<Rig> {
    use monel::device::vulkan;
    if options.memory_limit.is_some() || options.max_buffer != Options::default().max_buffer {
        return None;
    }
    if vulkan::list().is_empty() {
        let required = std::env::var_os("MONEL_REQUIRE_VULKAN").is_some();
        assert!(!required, "no Vulkan device: {:?}", vulkan::problems());
        println!("skipped: no Vulkan device: {:?}", vulkan::problems());
        return None;
    }
    let index = std::env::var("MONEL_VULKAN_DEVICE")
        .map_or(0, |n| n.parse().expect("MONEL_VULKAN_DEVICE is a number"));
    let settings = options.settings.clone();
    let options = vulkan::Options { index, cache: None, settings, ..vulkan::Options::default() };
    let turn = Turn::take();
    let (device, holder) = vulkan::create(&options).unwrap();
    // The CPU in a GPU's clothes has no such driver, and tests of it may go on beside each other.
    let turn = turn.filter(|_| device.info().kind != monel::DeviceKind::Software);
    Some(Rig { name: "vulkan".into(), device, background: Mutex::new(None), holder: Some(holder), turn })
}

#[cfg(not(feature = "vulkan"))]
fn vulkan_rig(_: &Options) -> Option<Rig> {
    None
}

impl Rig {
    fn host(name: String, device: Device, background: Option<(Script, Option<Background>)>) -> Rig {
        Rig {
            name,
            device,
            background: Mutex::new(background),
            #[cfg(feature = "vulkan")]
            holder: None,
            #[cfg(feature = "vulkan")]
            turn: None,
        }
    }
}

/// The devices that run kernels of the tests' own.
pub fn host_rigs(options: &Options) -> Vec<Rig> {
    let mut rigs = Vec::new();
    let (device, script) = scripted::create(options);
    let background = Some((script.clone(), Some(script.run_in_background())));
    rigs.push(Rig::host("scripted".into(), device, background));
    for threads in 1..4 {
        let device = software::create(&Options { threads, ..options.clone() }).unwrap();
        rigs.push(Rig::host(format!("{threads} threads"), device, None));
    }
    rigs
}

/// Runs a test on every device.
pub fn on_each(options: &Options, test: impl Fn(&Rig)) {
    for rig in rigs(options) {
        eprintln!("on {}", rig.name);
        test(&rig);
    }
}

/// Runs a test on every device that runs the tests' own kernels.
pub fn on_each_host(options: &Options, test: impl Fn(&Rig)) {
    for rig in host_rigs(options) {
        eprintln!("on {}", rig.name);
        test(&rig);
    }
}

/// Runs a test on every device that uses files in place.
pub fn on_each_that_maps(options: &Options, test: impl Fn(&Rig)) {
    for rig in rigs(options).into_iter().filter(|rig| rig.device.capabilities().contains(&"mapped-memory")) {
        eprintln!("on {}", rig.name);
        test(&rig);
    }
}

/// A device that runs only what its script is told to run. When a test fails in the middle, its streams still wait for
/// their work as they are dropped; so the scripts of a thread that panics run by themselves from then on.
pub fn scripted(options: &Options) -> (Device, Script) {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            report(info);
            SCRIPTS.with_borrow_mut(|scripts| {
                scripts.drain(..).for_each(|script| {
                    script.release();
                    std::mem::forget(script.run_in_background());
                });
            });
        }));
    });
    let (device, script) = scripted::create(options);
    SCRIPTS.with_borrow_mut(|scripts| scripts.push(script.clone()));
    (device, script)
}

thread_local! {
    static SCRIPTS: RefCell<Vec<Script>> = const { RefCell::new(Vec::new()) };
}

impl Rig {
    /// Keeps the device from running anything that is submitted from now on, until the guard is dropped.
    pub fn hold(&self) -> Held<'_> {
        if let Some((_, background)) = &mut *self.background.lock().unwrap() {
            *background = None;
            return Held::new(self, None);
        }
        #[cfg(feature = "vulkan")]
        if let Some(holder) = &self.holder {
            let mut held = Held::new(self, None);
            held.brake = Some(holder.hold().unwrap());
            return held;
        }
        let gate = Arc::new(Barrier::default());
        let mut graph = Graph::new("hold");
        let place = graph.leaf(&self.device.tensor(DType::F32, &[1]).unwrap());
        graph.apply_into(Hold { gate: gate.clone() }, &[], place).unwrap();
        let stream = self.device.stream();
        drop(stream.submit(&self.device.record(&graph).unwrap()).unwrap());
        gate.wait_for(|s| s.entered);
        Held::new(self, Some((gate, stream)))
    }
}

/// Lets the device go on when dropped.
pub struct Held<'a> {
    rig: &'a Rig,
    gate: Option<(Arc<Barrier>, Stream)>,
    #[cfg(feature = "vulkan")]
    #[allow(dead_code, reason = "lets go when it is dropped")]
    brake: Option<monel::device::vulkan::Brake>,
}

impl<'a> Held<'a> {
    fn new(rig: &'a Rig, gate: Option<(Arc<Barrier>, Stream)>) -> Held<'a> {
        Held {
            rig,
            gate,
            #[cfg(feature = "vulkan")]
            brake: None,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        match &self.gate {
            Some((gate, _)) => gate.set(|s| s.released = true),
            None => {
                if let Some((script, background)) = &mut *self.rig.background.lock().unwrap() {
                    *background = Some(script.run_in_background());
                }
            }
        }
    }
}

#[derive(Default, Debug)]
struct BarrierState {
    entered: bool,
    released: bool,
}

/// Where a kernel stands until the test lets it go on.
#[derive(Default, Debug)]
pub struct Barrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

impl Barrier {
    fn set(&self, change: impl FnOnce(&mut BarrierState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait_for(&self, ready: impl Fn(&BarrierState) -> bool) {
        let mut state = self.state.lock().unwrap();
        while !ready(&state) {
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// An op for tests: F32 `[1]` from nothing, whose kernel or encoder does what the test wants.
macro_rules! test_op {
    ($op:ty, $name:literal, |$this:ident, $call:ident| $kernels:expr) => {
        impl Op for $op {
            fn name(&self) -> &'static str {
                $name
            }
            fn output(&self, _: &[Desc]) -> Result<Desc> {
                Desc::new(DType::F32, &[1])
            }
            fn supports(&self, _: &[Desc], _: &Desc) -> Result<(), String> {
                Ok(())
            }
            fn cost(&self, _: &[Desc], _: &Desc) -> Cost {
                Cost::default()
            }
            fn kernels(&self, $call: &Call<'_>) -> Vec<Kernel> {
                let $this = self.clone();
                $kernels
            }
            fn reference(&self, _: &[RefTensor], output: &Desc) -> RefTensor {
                RefTensor::zeros(output.ne)
            }
        }
    };
}

#[derive(Clone, Debug)]
struct Hold {
    gate: Arc<Barrier>,
}
test_op!(Hold, "hold", |this, _call| vec![Kernel::new(1, 1, move |_, _| {
    this.gate.set(|s| s.entered = true);
    this.gate.wait_for(|s| s.released);
    Ok(())
})]);

/// Panics when it runs.
#[derive(Clone, Debug)]
pub struct Panics;
test_op!(Panics, "panics", |_this, _call| vec![Kernel::new(1, 1, |_, _| panic!("as the test wants"))]);

/// Panics when it is encoded.
#[derive(Clone, Debug)]
pub struct PanicsInEncoding;
test_op!(PanicsInEncoding, "panics_in_encoding", |_this, _call| panic!("as the test wants"));

/// Fails when it runs.
#[derive(Clone, Debug)]
pub struct Fails;
test_op!(Fails, "fails", |_this, _call| vec![Kernel::new(1, 1, |_, _| {
    Err(Error::Kernel("as the test wants".into()))
})]);

/// What no device supports.
#[derive(Clone, Debug)]
pub struct Unsupported;

impl Op for Unsupported {
    fn name(&self) -> &'static str {
        "unsupported"
    }
    fn output(&self, inputs: &[Desc]) -> Result<Desc> {
        Ok(inputs[0])
    }
    fn supports(&self, _: &[Desc], _: &Desc) -> Result<(), String> {
        Err("nobody can".into())
    }
    fn kernels(&self, _: &Call<'_>) -> Vec<Kernel> {
        panic!("never encoded")
    }
    fn reference(&self, _: &[RefTensor], output: &Desc) -> RefTensor {
        RefTensor::zeros(output.ne)
    }
}

/// A recording of one op without inputs, whose result nobody looks at.
pub fn lone(device: &Device, name: &str, op: impl Op) -> Recording {
    let mut graph = Graph::new(name);
    let place = graph.leaf(&device.tensor(DType::F32, &[1]).unwrap());
    graph.apply_into(op, &[], place).unwrap();
    device.record(&graph).unwrap()
}

pub fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A tensor of `n` floats in memory of the given kind.
pub fn tensor(device: &Device, storage: Storage, n: usize) -> Tensor {
    device.allocate(storage, n * 4).unwrap().tensor(0, DType::F32, &[n]).unwrap()
}

/// `to = from + 1`, `steps` times back and forth between the two, each step with a barrier before it.
pub fn count_up(name: &str, from: &Tensor, to: &Tensor, steps: usize) -> Graph {
    let mut graph = Graph::new(name);
    let places: [Value; 2] = [graph.leaf(from), graph.leaf(to)];
    for i in 0..steps {
        let op = monel::ops::Scale { scale: 1.0, bias: 1.0 };
        graph.apply_into(op, &[places[i % 2]], places[(i + 1) % 2]).unwrap();
    }
    graph
}

/// Settings under which every step is a chunk of a long graph.
pub fn tiny_chunks() -> Options {
    let mut options = options();
    options.settings.chunk_budget = Duration::ZERO;
    options
}

/// Waits until `ready`, or fails after a time that is far more than anybody needs.
pub fn eventually(what: &str, ready: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if ready() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}
