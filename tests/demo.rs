//! The demo is played as a user plays it: three processes, real sockets, real disks.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_demo_loses_nothing_and_no_term_has_two_leaders() {
    let output = Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(["demo", "--json"]).output().unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{told}\n{errors}", output.status);
    let lines: Vec<Value> =
        told.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let end = lines.last().expect("there is a last line");
    assert_eq!(end["lost"], 0);
    assert_eq!(end["leaders_per_term"], 1);
    assert!(end["acknowledged"].as_u64().is_some_and(|count| count > 0), "{end}");
}
