//! Prints the definitions of all kinds as YAML; `cargo xtask generate` reads them.
#![allow(clippy::print_stdout, reason = "printing is what it does")]

fn main() -> Result<(), crds::Error> {
    print!("{}", crds::to_yaml()?);
    Ok(())
}
