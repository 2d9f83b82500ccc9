//! `monel check`: whether a device computes right.

use super::common::DeviceArgs;

/// What `check` is told.
#[allow(missing_docs)]
#[derive(Debug, Clone, clap::Args)]
#[command(about = "Check that a device computes right values", long_about = LONG_ABOUT,
          after_long_help = EXAMPLES)]
pub struct Args {
    /// Only these ops, by their names
    #[arg(short, long, value_name = "OP,...", value_delimiter = ',')]
    pub op: Vec<String>,

    /// Only these tensor types, such as f32 or q4_k
    #[arg(long = "type", value_name = "TYPE,...", value_delimiter = ',')]
    pub types: Vec<String>,

    /// Print one JSON object with every case
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub device: DeviceArgs,
}

const LONG_ABOUT: &str = "\
Runs every op on a device, for every type and many shapes, and compares the values with a slow \
reference in double precision. A case is ok, failed (with its error and the tolerance) or refused \
(with the reason): what a device accepts it must compute right. Ends with 1 when anything failed.";

const EXAMPLES: &str = "\
EXAMPLES:
  monel check --device cpu
  monel check --device vulkan -o mul_mat --type q4_k,q8_0
  monel check --json | jq .failed";

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn lists() {
        let args: Args = parse(&["-o", "add,mul_mat", "--type", "f32", "--device", "cpu"]).unwrap();
        assert_eq!((args.op, args.types), (vec!["add".into(), "mul_mat".into()], vec!["f32".into()]));
        assert!(parse::<Args>(&[]).unwrap().op.is_empty());
    }
}
