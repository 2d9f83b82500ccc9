//! `monel devices`: what there is to run on.

/// What `devices` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "List the devices that models can run on", long_about = LONG_ABOUT,
          after_long_help = EXAMPLES)]
pub struct Args {
    /// Print one JSON object with the list
    #[arg(long)]
    pub json: bool,
}

const LONG_ABOUT: &str = "\
Lists the devices that models can run on, with their memory and what they can do. The id is what \
--device takes; part of a name does as well.

The last line says which CPU features are used and which this machine has. The environment variable \
MONEL_CPU_FEATURES limits them: scalar, avx2, avx2-vnni, avx512, avx512-vnni, amx; on ARM scalar, neon, dotprod, i8mm.

Without --device, the GPU with the most memory is used, and the CPU if there is none.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel devices
  monel devices --json | jq -r '.devices[].id'";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn flags() {
        assert!(parse::<Args>(&["--json"]).unwrap().json);
        assert!(parse::<Args>(&["cpu"]).is_err());
    }
}
