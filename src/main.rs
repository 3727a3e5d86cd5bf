//! The `tiebreak` command.
fn main() -> std::process::ExitCode {
    tiebreak::cli::main()
}
