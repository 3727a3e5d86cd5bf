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

#[test]
fn what_has_a_gate_refuses_the_late_write_and_what_has_none_takes_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    let output = command.args(["demo", "fencing", "--json"]).output().unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{told}\n{errors}", output.status);
    let lines: Vec<Value> =
        told.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let without_postgresql = lines
        .iter()
        .any(|line| line["text"].as_str().is_some_and(|text| text.starts_with("skipped: PostgreSQL")));
    if without_postgresql {
        eprintln!("skipped: there is no PostgreSQL here (apt-get install postgresql-15)");
    }
    let balances: Vec<&Value> = lines.iter().filter(|line| line["event"] == "balance").collect();
    assert_eq!(balances.len(), if without_postgresql { 2 } else { 4 });
    for balance in balances {
        let is_gated = balance["refuses"] != "nothing";
        assert_eq!(balance["balance"], if is_gated { 150 } else { 70 }, "{balance}");
        let says_both = |why: &str| why.contains("is stale: a writer with token");
        assert_eq!(balance["refusal"].as_str().is_some_and(says_both), is_gated, "{balance}");
    }
}
