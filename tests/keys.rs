//! `tiebreak keys` as people use it.
#![cfg(feature = "cli")]

use std::path::Path;
use std::process::{Command, Output};

fn keys(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.arg("keys").args(arguments).arg(file).output().expect("the binary was built for this test")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("what is printed is text").trim_end().to_owned()
}

#[test]
fn a_key_is_made_once_and_shown_as_often_as_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pem");
    let made = stdout(&keys(&["new"], &file));
    assert!(made.starts_with("tb1:") && made.len() == 68, "{made}");
    assert_eq!(stdout(&keys(&["show"], &file)), made);
    assert_eq!(stdout(&keys(&["show", "--toml"], &file)), format!("keys = [\"{made}\"]"));
    let again = keys(&["new"], &file);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("never overwritten"), "{again:?}");
}

#[test]
fn the_fingerprint_is_the_one_that_other_tools_compute() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pem");
    let made = stdout(&keys(&["new"], &file));
    let script = "openssl x509 -in \"$0\" -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum";
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: this machine has no openssl");
        return;
    }
    let other = Command::new("sh").args(["-c", script]).arg(&file).output().unwrap();
    assert_eq!(format!("tb1:{}", &stdout(&other)[..64]), made);
}

#[test]
fn a_missing_key_file_is_answered_with_the_command_that_makes_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("none.pem");
    let shown = keys(&["show"], &file);
    assert!(String::from_utf8_lossy(&shown.stderr).contains("tiebreak keys new"), "{shown:?}");
}
