//! Builds files byte by byte, so that they can be wrong in ways that the writer refuses.
#![allow(dead_code)]

use monel_gguf::{Error, GgmlType, Gguf, GgufWriter, StringArray};

/// A file under construction.
#[derive(Clone)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// Magic, version 3 and the two counts.
    pub fn new(tensors: u64, entries: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(entries)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    pub fn u32(self, number: u32) -> Raw {
        self.bytes(&number.to_le_bytes())
    }

    pub fn u64(self, number: u64) -> Raw {
        self.bytes(&number.to_le_bytes())
    }

    pub fn string(self, bytes: &[u8]) -> Raw {
        self.u64(bytes.len() as u64).bytes(bytes)
    }

    /// A key and the id of its value's type; the value comes next.
    pub fn key(self, key: &str, value_type: u32) -> Raw {
        self.string(key.as_bytes()).u32(value_type)
    }

    pub fn key_u32(self, key: &str, value: u32) -> Raw {
        self.key(key, 4).u32(value)
    }

    pub fn tensor(self, name: &[u8], shape: &[u64], ty: u32, offset: u64) -> Raw {
        let named = self.string(name).u32(shape.len() as u32);
        shape.iter().fold(named, |raw, &length| raw.u64(length)).u32(ty).u64(offset)
    }

    /// Zeros up to the next multiple of 32, then `length` bytes of data.
    pub fn data(mut self, length: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32), 0);
        self.bytes(&vec![0xab; length])
    }

    /// The bare error of reading the file, which must fail.
    pub fn error(self) -> Error {
        Gguf::from_bytes(self.0).expect_err("the file is malformed")
    }
}

/// A valid file of a few hundred bytes with something of everything.
pub fn small_model() -> Vec<u8> {
    let mut file = GgufWriter::new();
    file.set("general.architecture", "llama").unwrap();
    file.set("general.alignment", 32u32).unwrap();
    file.set("flag", true).unwrap().set("scale", 0.5f64).unwrap().set("ids", vec![1i32, -2]).unwrap();
    file.set("tokens", ["a", "", "bc"].iter().collect::<StringArray>()).unwrap();
    file.tensor("embedding", GgmlType::Q8_0, &[32, 2]).unwrap();
    file.tensor("norm", GgmlType::F32, &[5]).unwrap();
    let mut data = file.start(Vec::new()).unwrap();
    data.tensor("embedding", &(0..68).collect::<Vec<u8>>()).unwrap();
    data.tensor("norm", &(0..20).collect::<Vec<u8>>()).unwrap();
    data.finish().unwrap()
}

/// A part of a split model with one tensor of three bytes.
pub fn split_part(number: u32, count: u32, tensors: u32, name: &str) -> Vec<u8> {
    let mut file = GgufWriter::new();
    file.set("general.name", format!("part {number}")).unwrap();
    file.set("split.no", number as u16).unwrap().set("split.count", count as u16).unwrap();
    file.set("split.tensors.count", tensors as i32).unwrap();
    file.tensor(name, GgmlType::I8, &[3]).unwrap();
    let mut data = file.start(Vec::new()).unwrap();
    data.tensor(name, &[number as u8; 3]).unwrap();
    data.finish().unwrap()
}

/// Reads everything there is; data that cannot be read is a failure.
pub fn touch(model: &Gguf) {
    for (key, value) in model.metadata().iter() {
        assert_eq!(model.metadata().get(key), Some(value));
        if let Some(array) = value.as_array() {
            (0..array.len()).for_each(|index| assert!(array.get(index).is_some()));
        }
    }
    for tensor in model.tensors() {
        assert_eq!(model.data(tensor).unwrap().len() as u64, tensor.bytes);
    }
}
