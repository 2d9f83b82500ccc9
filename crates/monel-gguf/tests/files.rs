//! Files on disk: mapping, split models, pages given back.
#![allow(clippy::unwrap_used)]

mod common;

use common::{small_model, split_part, touch};
use monel_gguf::{Advice, Error, GgmlType, Gguf, GgufWriter};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

/// Writes the three parts of a model into `directory`.
fn write_split(directory: &Path) {
    for number in 0..3 {
        let path = directory.join(format!("model-{:05}-of-00003.gguf", number + 1));
        fs::write(path, split_part(number, 3, 3, &format!("w{number}"))).unwrap();
    }
}

#[test]
fn a_mapped_file_and_its_bytes_hold_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    fs::write(&path, small_model()).unwrap();
    let (mapped, read) = (Gguf::open(&path).unwrap(), Gguf::from_bytes(small_model()).unwrap());
    assert_eq!(mapped.metadata(), read.metadata());
    assert_eq!(mapped.tensors(), read.tensors());
    for tensor in mapped.tensors() {
        assert_eq!(mapped.data(tensor).unwrap(), read.data(tensor).unwrap());
        assert_eq!(mapped.data(tensor).unwrap().as_ptr().addr() % 32, 0, "aligned in memory");
    }
    assert_eq!(mapped.parts()[0].path(), Some(&*path));
    assert!(mapped.parts()[0].is_mapped() && !read.parts()[0].is_mapped());
    assert_eq!(mapped.parts()[0].mapping(), small_model());
}

#[test]
fn a_part_outlives_its_model() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    fs::write(&path, small_model()).unwrap();
    let model = Gguf::open(&path).unwrap();
    let (part, range) = model.locate(model.tensor("norm").unwrap()).unwrap();
    let part = Arc::clone(part);
    drop(model);
    assert_eq!(part.bytes(range).unwrap(), (0..20).collect::<Vec<u8>>());
}

#[test]
fn any_part_of_a_split_model_opens_all() {
    let directory = tempfile::tempdir().unwrap();
    write_split(directory.path());
    for opened in 1..=3 {
        let model = Gguf::open(directory.path().join(format!("model-{opened:05}-of-00003.gguf"))).unwrap();
        assert_eq!(
            model.metadata().get_str("general.name").unwrap(),
            Some("part 0"),
            "the first part's metadata"
        );
        assert_eq!(model.parts().len(), 3);
        for (number, tensor) in model.tensors().iter().enumerate() {
            assert_eq!((&*tensor.name, tensor.part), (&*format!("w{number}"), number));
            assert_eq!(model.data(tensor).unwrap(), [number as u8; 3]);
        }
    }
}

#[test]
fn a_broken_part_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write_split(directory.path());
    let second = directory.path().join("model-00002-of-00003.gguf");
    File::options().write(true).open(&second).unwrap().set_len(40).unwrap();
    let error = Gguf::open(directory.path().join("model-00001-of-00003.gguf")).unwrap_err();
    assert!(matches!(&error, Error::InFile { path, .. } if *path == second), "{error}");

    fs::write(&second, split_part(2, 3, 3, "w1")).unwrap();
    let error = Gguf::open(directory.path().join("model-00003-of-00003.gguf")).unwrap_err();
    assert!(matches!(error.cause(), Error::SplitMismatch { found: 2, number: 1, .. }), "{error}");

    fs::write(&second, small_model()).unwrap();
    let error = Gguf::open(directory.path().join("model-00003-of-00003.gguf")).unwrap_err();
    assert!(
        matches!(error.cause(), Error::SplitMismatch { found_count: 1, number: 1, count: 3, .. }),
        "{error}"
    );
}

#[test]
fn split_parts_in_memory_make_one_model() {
    let model = Gguf::from_parts([split_part(0, 2, 2, "a"), split_part(1, 2, 2, "b")]).unwrap();
    touch(&model);
    assert_eq!(model.data(model.require_tensor("b").unwrap()).unwrap(), [1; 3]);
}

/// Bytes of this process's resident pages that belong to files, as Linux counts them.
#[cfg(target_os = "linux")]
fn resident_in(map_name: &str) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(map_name));
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn pages_given_back_leave_memory_and_come_back_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pages.gguf");
    let length = 4 << 20;
    let mut file = GgufWriter::new();
    file.tensor("first", GgmlType::I8, &[length]).unwrap().tensor("second", GgmlType::I8, &[length]).unwrap();
    let mut data = file.start(BufWriter::new(File::create(&path).unwrap())).unwrap();
    let content: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
    data.tensor("first", &content).unwrap();
    data.tensor("second", &content).unwrap();
    data.finish().unwrap();

    let model = Gguf::open(&path).unwrap();
    let first = model.tensor("first").unwrap();
    assert!(model.advise(first, Advice::WillNeed).unwrap());
    touch(&model);
    assert_eq!(model.data(first).unwrap(), content);
    assert_eq!(model.data(model.tensor("second").unwrap()).unwrap(), content);
    let before = resident_in("pages.gguf");
    assert!(before >= 2 * length, "{before} bytes are resident");
    assert!(model.advise(first, Advice::DontNeed).unwrap());
    let after = resident_in("pages.gguf");
    assert!(after <= length + (128 << 10), "{after} of {before} bytes are still resident");
    assert_eq!(model.data(first).unwrap(), content);
}

#[test]
fn memory_takes_no_advice() {
    let model = Gguf::from_bytes(small_model()).unwrap();
    assert!(!model.advise(&model.tensors()[0], Advice::DontNeed).unwrap());
    assert!(model.parts()[0].advise(0..1 << 40, Advice::DontNeed).is_err());
}

#[test]
fn tensors_before_a_cut_can_still_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    fs::write(&path, small_model()).unwrap();
    let model = Gguf::open(&path).unwrap();
    let (_, first) = model.locate(&model.tensors()[0]).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(first.end).unwrap();
    assert_eq!(model.data(&model.tensors()[0]).unwrap().len(), 68);
    let error = model.data(&model.tensors()[1]).unwrap_err();
    assert!(matches!(error.cause(), Error::FileShrunk { now, .. } if *now == first.end), "{error}");
}

#[test]
fn reading_copies_what_the_mapping_shows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    fs::write(&path, small_model()).unwrap();
    for model in [Gguf::open(&path).unwrap(), Gguf::from_bytes(small_model()).unwrap()] {
        for tensor in model.tensors() {
            let data = model.data(tensor).unwrap();
            for (start, end) in [(0, data.len()), (1, data.len()), (0, data.len() - 1), (3, 3)] {
                let mut out = vec![0xee; end - start];
                model.read(tensor, start as u64, &mut out).unwrap();
                assert_eq!(out, data[start..end], "{} from {start}", tensor.name);
            }
        }
    }
}

#[test]
fn reading_past_a_tensor_is_an_error() {
    let model = Gguf::from_bytes(small_model()).unwrap();
    let first = &model.tensors()[0];
    let (_, range) = model.locate(first).unwrap();
    let mut out = [0xee; 8];
    // Bytes of the next tensor and of the padding are not this one's, though they are in the file.
    for start in [first.bytes - 7, first.bytes, u64::MAX - 3, u64::MAX] {
        let error = model.read(first, start, &mut out).unwrap_err();
        let at = range.start.saturating_add(start);
        assert!(matches!(error.cause(), Error::RangePastEnd { start, .. } if *start == at), "{error}");
    }
    let file = model.parts()[0].file_bytes();
    let error = model.parts()[0].read(file - 7, &mut out).unwrap_err();
    assert!(
        matches!(error.cause(), Error::RangePastEnd { file_bytes, .. } if *file_bytes == file),
        "{error}"
    );
    assert_eq!(out, [0xee; 8], "nothing was written");
}

#[test]
fn reading_a_file_that_was_cut_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    fs::write(&path, small_model()).unwrap();
    let model = Gguf::open(&path).unwrap();
    let [first, second] = [0, 1].map(|i| &model.tensors()[i]);
    let (_, range) = model.locate(second).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(range.start + 5).unwrap();
    let mut out = vec![0; second.bytes as usize];
    let error = model.read(second, 0, &mut out).unwrap_err();
    assert!(
        matches!(error.cause(), Error::FileShrunk { now, wanted, .. } if *now == range.start + 5 && *wanted == range.end),
        "{error}"
    );
    model.read(second, 1, &mut out[..4]).unwrap();
    model.read(first, 0, &mut vec![0; first.bytes as usize]).unwrap();
}
