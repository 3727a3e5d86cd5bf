//! `tiebreak status` against a real cluster: the exit code, the table, the JSON, and the words.
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

mod three;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tiebreak::ids::Position;
use tiebreak::message::Kind;
use tiebreak::{Cluster, Role, WitnessNode};
use tokio::sync::oneshot;

use three::{A, Setup};

/// Offers when it leads, joins when it follows: a data layer with nothing in it.
async fn serve(cluster: Cluster, stop: oneshot::Receiver<()>) {
    let mut roles = cluster.roles();
    let work = async {
        while let Some(role) = roles.next().await {
            match role {
                Role::Leader(leader) if leader.may_offer && leader.right != tiebreak::Right::Paired => {
                    let _ = cluster.offer(Position(0)).await;
                }
                Role::Standby(standby) => {
                    if let Some(offer) = standby.offer {
                        let _ = cluster.joined(&offer, offer.position).await;
                    }
                }
                _ => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        _ = stop => {}
    }
    cluster.shutdown().await;
}

fn ask(file: &Path, json: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(["status", "--timeout", "1s", "--config"]).arg(file);
    if json {
        command.arg("--json");
    }
    command.output().expect("the binary runs")
}

/// Asks until the exit code is the expected one, for a bounded time.
async fn until(file: &Path, code: i32) -> (String, serde_json::Value) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let asked = file.to_owned();
        let output = tokio::task::spawn_blocking(move || ask(&asked, true)).await.expect("no panic");
        if output.status.code() == Some(code) {
            let json = serde_json::from_slice(&output.stdout).expect("one JSON object");
            let asked = file.to_owned();
            let table = tokio::task::spawn_blocking(move || ask(&asked, false)).await.expect("no panic");
            return (String::from_utf8_lossy(&table.stdout).into_owned(), json);
        }
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(Instant::now() < deadline, "still {:?} and not {code}: {told}", output.status.code());
    }
}

#[tokio::test]
async fn status_tells_well_degraded_leaderless_and_unknown_apart() {
    let setup = Setup::new();
    let file = setup.file(A);
    let (_, json) = until(&file, 3).await;
    assert_eq!(json["verdict"], "unknown");

    setup.init(Kind::Replicated);
    let (stop_w, stopped) = oneshot::channel::<()>();
    let witness = WitnessNode::open(&setup.witness()).expect("opens");
    let witness = tokio::spawn(witness.run(async {
        let _ = stopped.await;
    }));
    let (stop_b, stopped) = oneshot::channel();
    let b = Cluster::join(setup.replica(1), Position(0)).await.expect("joins");
    let b = tokio::spawn(serve(b, stopped));
    // A blank replica and a blank witness: nobody can lead.
    let (table, json) = until(&file, 2).await;
    assert!(table.contains("blank"), "{table}");
    assert_eq!(json["nodes"][0]["node"], "a");

    let (stop_a, stopped) = oneshot::channel();
    let a = Cluster::join(setup.replica(0), Position(0)).await.expect("joins");
    let a = tokio::spawn(serve(a, stopped));
    let (table, json) = until(&file, 0).await;
    assert!(table.contains("leads, paired") && table.contains("follower"), "{table}");
    assert_eq!((&json["verdict"], &json["exit_code"]), (&"well".into(), &0.into()));

    let _ = stop_w.send(());
    witness.await.expect("no panic").expect("stops in good order");
    let (table, _) = until(&file, 1).await;
    assert!(table.contains("w cannot be asked"), "{table}");

    // With the witness away and its leader gone, the follower cannot lead.
    let _ = stop_a.send(());
    a.await.expect("no panic");
    let (_, json) = until(&file, 3).await;
    assert!(json["why"].as_array().is_some_and(|why| !why.is_empty()));
    let _ = stop_b.send(());
    b.await.expect("no panic");
}

#[test]
fn a_configuration_that_cannot_be_used_is_unknown_and_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a.toml");
    std::fs::write(&file, "cluster = \"orders\"\nlese = \"2s\"\n").expect("written");
    let output = ask(&file, false);
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("`lese`") && told.contains("`lease`"), "{told}");
}
