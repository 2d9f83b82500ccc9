//! Names of files on the Hugging Face Hub: `hf:OWNER/REPO/FILE`.
//!
//! FILE may lie in directories of the repository. The parts become a path in the cache and a path in an
//! address, so they are looked at first: nothing in a name may lead out of the cache.

use std::fmt;

use super::ModelError;

/// What such names begin with.
pub const PREFIX: &str = "hf:";

/// A file on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// The user or organisation.
    pub owner: String,
    /// The repository.
    pub repo: String,
    /// The file's path in the repository.
    pub file: String,
}

impl HubFile {
    /// Reads `hf:OWNER/REPO/FILE`.
    ///
    /// # Errors
    /// [`ModelError::HubName`] when a part is missing or is none that the hub allows.
    pub fn parse(name: &str) -> Result<Self, ModelError> {
        let wrong = || ModelError::HubName(name.into());
        let rest = name.strip_prefix(PREFIX).ok_or_else(wrong)?;
        let fits = |part: &str| {
            !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', ':', '?', '#', '\0'])
        };
        if !rest.split('/').all(fits) {
            return Err(wrong());
        }
        let mut parts = rest.splitn(3, '/').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(owner), Some(repo), Some(file)) => Ok(Self { owner, repo, file }),
            _ => Err(wrong()),
        }
    }

    /// The path in the cache and in the lock's name, with `/` between its parts.
    pub fn cache_name(&self) -> String {
        format!("hf/{}/{}/{}", self.owner, self.repo, self.file)
    }

    /// The path in the hub's addresses.
    pub fn url_path(&self) -> String {
        let encode = |text: &str| -> String {
            text.bytes()
                .map(|b| match b {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                        char::from(b).to_string()
                    }
                    _ => format!("%{b:02X}"),
                })
                .collect()
        };
        format!("{}/{}/resolve/main/{}", encode(&self.owner), encode(&self.repo), encode(&self.file))
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}/{}", self.owner, self.repo, self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_three_parts() {
        let file = HubFile::parse("hf:a/b/dir/c d.gguf").unwrap();
        assert_eq!((file.owner.as_str(), file.repo.as_str(), file.file.as_str()), ("a", "b", "dir/c d.gguf"));
        assert_eq!(file.url_path(), "a/b/resolve/main/dir/c%20d.gguf");
        assert_eq!(file.cache_name(), "hf/a/b/dir/c d.gguf");
        assert_eq!(file.to_string(), "hf:a/b/dir/c d.gguf");
    }

    #[test]
    fn names_do_not_lead_elsewhere() {
        for name in [
            "hf:",
            "hf:a",
            "hf:a/b",
            "hf:a/b/",
            "hf:/b/c",
            "hf:a//c",
            "hf:../b/c",
            "hf:a/b/../../c",
            "hf:a/./c",
            "hf:a/b/.git",
            "hf:a/b\\..\\c/d",
            "hf:a/b/c?x",
            "a/b/c",
        ] {
            assert!(matches!(HubFile::parse(name), Err(ModelError::HubName(n)) if n == name), "{name}");
        }
    }
}
