//! `monel check`: whether a device computes right.

use super::common::{DeviceArgs, ThreadArgs};
use super::parse;

/// What `check` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Check that a device computes right values", long_about = LONG_ABOUT,
          after_long_help = EXAMPLES)]
pub struct Args {
    /// Only this op, by its name
    #[arg(short, long, value_name = "OP")]
    pub op: Option<String>,

    /// Only this tensor type, such as f32 or q4_k
    #[arg(long = "type", value_name = "TYPE")]
    pub dtype: Option<String>,

    /// Only cases whose inputs have at most N values in all: a quick look, or a slow device
    #[arg(long, value_name = "N", value_parser = parse::count, allow_negative_numbers = true)]
    pub max_values: Option<usize>,

    /// Print one JSON object with every case
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
}

const LONG_ABOUT: &str = "\
Runs every op on a device, for every type and many shapes, and compares the values with a slow \
reference in double precision. A case is ok, failed (with its error and the tolerance) or refused \
(with the reason): what a device accepts it must compute right. Ends with 1 when anything failed. Ctrl-C stops it and prints the cases so far.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel check --device cpu
  monel check --device vulkan -o mat_mul --type q4_k
  monel check --max-values 1000
  monel check --json | jq .failed";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn flags() {
        let args: Args = parse(&["-o", "mul_mat", "--type", "f32", "--device", "cpu", "-t", "1"]).unwrap();
        assert_eq!((args.op.as_deref(), args.dtype.as_deref()), (Some("mul_mat"), Some("f32")));
        assert_eq!((args.device.device.as_deref(), args.threads.threads), (Some("cpu"), Some(1)));
        let all: Args = parse(&[]).unwrap();
        assert_eq!((all.op, all.dtype, all.max_values), (None, None, None));
        assert_eq!(parse::<Args>(&["--max-values", "64"]).unwrap().max_values, Some(64));
    }
}
