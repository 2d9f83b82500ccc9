//! P1, P2, P4 and P5.

use crate::harness::*;
#[cfg(unix)]
use crate::memory::Pages;
use monel::device::Storage;
use monel::ops::{Binary, BinaryKind};
use monel::{DType, Desc, Error, Graph, Trace};
use std::ops::Range;

#[test]
fn p1_what_a_device_claims_is_what_it_does() {
    on_each(&options(), |rig| {
        let claims = rig.device.capabilities();
        struct Nothing;
        impl monel::HostMapping for Nothing {
            fn bytes(&self) -> &[u8] {
                &[]
            }
            fn name(&self) -> String {
                "nothing".into()
            }
        }
        let no_tensors: [Range<usize>; 0] = [];
        let maps = rig.device.map(std::sync::Arc::new(Nothing), &no_tensors).is_ok();
        assert_eq!(claims.contains(&"mapped-memory"), maps);
        let shares = rig.device.default_storage() == Storage::Shared;
        assert_eq!(claims.contains(&"shared-memory"), shares);
        for always in ["async", "events"] {
            assert!(claims.contains(&always), "{claims:?}");
        }
    });
}

#[test]
fn p2_what_is_not_supported_is_refused_with_a_reason() {
    on_each(&options(), |rig| {
        let desc = |dtype| Desc::new(dtype, &[32]).unwrap();
        let divide = Binary { kind: BinaryKind::Div };
        let integers = [desc(DType::I32), desc(DType::I32)];
        let reason = rig.device.supports(&divide, &integers, &desc(DType::I32)).unwrap_err();
        assert!(!reason.is_empty());
        // The planner asks the same question, and says the same.
        let x = rig.device.tensor(DType::I32, &[32]).unwrap();
        let mut graph = Graph::new("integers");
        let leaf = graph.leaf(&x);
        graph.div(leaf, leaf).unwrap();
        let Err(Error::Unsupported { reason: found, .. }) = rig.device.record(&graph) else {
            panic!("refused")
        };
        assert_eq!(found, reason);
        let floats = [desc(DType::F32), desc(DType::F32)];
        rig.device.supports(&divide, &floats, &desc(DType::F32)).unwrap();
    });
}

/// Weights that nobody may look at while a graph is planned and encoded: a touch would end the process.
#[cfg(unix)]
#[test]
fn p4_encoding_touches_no_tensor_data() {
    let mut options = options();
    options.settings.encode_helpers = 0;
    on_each_host(&options, |rig| {
        let weights: Vec<f32> = (0..1024).map(|i| i as f32).collect();
        let file = Pages::new(&float_bytes(&weights));
        file.protect(libc::PROT_NONE);
        let mapped = rig.device.map(file.clone(), &[0..4096]).unwrap();
        let w = mapped.tensor(0, Desc::new(DType::F32, &[32, 32]).unwrap()).unwrap();
        let row = mapped.tensor(0, Desc::new(DType::F32, &[32]).unwrap()).unwrap();
        let output = tensor(&rig.device, Storage::Private, 32);
        let mut graph = Graph::new("all kinds");
        let (w, row, place) = (graph.leaf(&w), graph.leaf(&row), graph.leaf(&output));
        let product = graph.mat_mul(w, row).unwrap();
        let scaled = graph.scale(product, 0.5, 0.0).unwrap();
        let sum = graph.add(scaled, row).unwrap();
        graph.apply_into(monel::ops::Scale { scale: 1.0, bias: 0.0 }, &[sum], place).unwrap();
        let stream = rig.device.stream();
        let held = rig.hold();
        let recording = rig.device.record(&graph).unwrap();
        let work = stream.submit(&recording).unwrap();
        assert!(recording.is_encoded() && !work.is_done());
        file.protect(libc::PROT_READ);
        drop(held);
        work.wait().unwrap();
        let result = floats(&stream.download(&output).unwrap().wait().unwrap());
        for (n, value) in result.iter().enumerate() {
            let product: f32 = (0..32).map(|k| (n * 32 + k) as f32 * k as f32).sum();
            assert_eq!(*value, product * 0.5 + n as f32);
        }
    });
}

#[test]
fn p5_a_timeline_shows_every_chunk_and_op() {
    on_each_host(&tiny_chunks(), |rig| {
        let trace = Trace::new();
        rig.device.set_trace(Some(trace.clone()));
        let (a, b) = (tensor(&rig.device, Storage::Private, 8), tensor(&rig.device, Storage::Private, 8));
        let stream = rig.device.stream();
        let recording = rig.device.record(&count_up("step", &a, &b, 4)).unwrap();
        let held = rig.hold();
        let work = stream.submit(&recording).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| work.wait());
            eventually("all is encoded", || recording.is_encoded());
            drop(held);
            waiter.join().unwrap().unwrap();
        });
        stream.fill(a.buffer(), 0, 4, 0).unwrap().wait().unwrap();
        rig.device.set_trace(None);
        let collected = trace.spans().len();
        stream.submit(&recording).unwrap().wait().unwrap();
        assert_eq!(trace.spans().len(), collected, "it ends when it is told to");
        let spans = trace.spans();
        let named =
            |category: &str, name: &str| spans.iter().filter(|s| s.0 == category && s.1 == name).count();
        assert_eq!(named("plan", "plan step #0"), 1);
        for chunk in 0..4 {
            for category in ["encode", "commit", "execute"] {
                assert_eq!(named(category, &format!("{category} step #{chunk}")), 1, "{category} {chunk}");
            }
        }
        assert_eq!(spans.iter().filter(|s| s.0 == "op" && s.1 == "scale").count(), 4);
        assert_eq!(named("execute", "execute fill"), 1);
        // An op lies inside the execution of its chunk, on the queue's track.
        let of = |name: &str| spans.iter().find(|s| s.1 == name).unwrap();
        let (chunk, op) =
            (of("execute step #0"), spans.iter().find(|s| s.0 == "op" && s.1 == "scale").unwrap());
        assert!(op.2 >= chunk.2 && op.2 + op.3 <= chunk.2 + chunk.3 + 0.001 && op.4 == chunk.4);
        let mut json = Vec::new();
        trace.write(&mut json).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(
            json.contains("\"traceEvents\"") && json.contains("queue ") && json.contains("execute step #3")
        );
    });
}
