//! What operators, load balancers and monitors ask for.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Output;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{A, B, Choice, Stage, W};

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Shows: a switchover to a standby that lacks something is refused with the figures, and nothing has changed; one that
/// holds everything gets the service, with the reason in the history; a slow demote is told as progress, not as a failure
/// (case 12).
#[test]
fn a_switchover_is_refused_with_figures_or_done_however_slow_the_demote_is() {
    let mut choice = Choice::hooks(&["promote", "demote", "check"]);
    choice.lease = "20s";
    choice.times = "demote = \"6s\"\ncheck_every = \"200ms\"".into();
    let stage = Stage::start(choice);
    stage.until_acts(A);
    stage.on("check", A, "echo position=120 standby_position=78; code=1");
    let output = stage.tiebreak(A, "switchover", &["--to", "b", "--wait"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        said(&output).contains("nothing was changed") && said(&output).contains("it lacks 42"),
        "{output:?}"
    );
    stage.until_acts(A);
    assert_eq!((stage.code(A, "/primary"), stage.code(B, "/primary")), (Some(200), Some(503)));
    assert_eq!(stage.hook_runs(A, "demote").len(), 1, "the one of the start");
    // The standby catches up.
    stage.on("check", A, "code=0");
    stage.until_pair(A);
    stage.on("demote", A, "echo slowly; sleep 2");
    let output = stage.tiebreak(A, "switchover", &["--to", "b", "--wait", "--reason", "new kernel"]);
    let told = said(&output);
    assert!(output.status.success() && told.contains("demote runs") && told.contains("b leads"), "{told}");
    assert_eq!(stage.metric(A, "tiebreak_kills_total"), Some(0.0), "slow is not failed");
    stage.until_primary(B);
    stage.until_acts(B);
    let output = stage.tiebreak(A, "switchover", &[]);
    assert!(output.status.code() == Some(1) && said(&output).contains("b does"), "{output:?}");
    let history = said(&stage.tiebreak(A, "history", &[]));
    assert!(history.contains("switchover: new kernel"), "{history}");
    stage.check();
}

/// Shows: watchers that have hung up while nothing changed keep no operator from the agent.
#[test]
fn watchers_that_are_gone_leave_their_places_to_others() {
    let stage = Stage::start(Choice::hooks(&["promote", "demote"]));
    stage.until_pair(A);
    let socket = stage.config(A).parent().expect("a directory").join("run-a/agent.sock");
    // As many as are served at once, and as many again.
    for _ in 0..32 {
        let mut watcher = UnixStream::connect(&socket).expect("the agent listens");
        watcher.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        watcher.write_all(b"{\"command\":\"watch\"}\n").expect("asked");
        let mut line = String::new();
        BufReader::new(watcher).read_line(&mut line).expect("there is a place for this one, too");
        assert!(line.contains("\"role\""), "{line}");
    }
    assert!(stage.tiebreak(A, "watch", &["--once"]).status.success());
    stage.check();
}

/// Shows: the answers that load balancers and monitors expect; and `/primary` is 503 as soon as the right has ended, while
/// the service is still being stopped.
#[test]
fn http_answers_as_load_balancers_expect() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    choice.lease = "6s";
    let stage = Stage::start(choice);
    let codes = |node| {
        ["/", "/primary", "/read-write", "/replica", "/health", "/liveness", "/readiness", "/status"]
            .map(|path| stage.code(node, path).unwrap_or(0))
    };
    assert_eq!(codes(A), [200, 200, 200, 503, 200, 200, 200, 200]);
    assert_eq!(codes(B), [503, 503, 503, 200, 200, 200, 200, 200]);
    assert_eq!(stage.code(A, "/nowhere"), Some(404));
    let options = stage.request(A, "OPTIONS /primary HTTP/1.0\r\n\r\n").expect("an answer");
    assert_eq!(options, (200, String::new()), "no body but to GET");
    assert_eq!(stage.request(B, "HEAD /primary HTTP/1.1\r\n\r\n").expect("an answer").0, 503);
    assert_eq!(stage.request(A, "POST /primary HTTP/1.1\r\n\r\n").expect("an answer").0, 405);
    let state = stage.state(A);
    assert_eq!(
        (&state["role"], &state["right"], &state["leader"]),
        (&"primary".into(), &"paired".into(), &"a".into())
    );
    let (_, page) = stage.get(A, "/metrics").expect("a page");
    for line in [
        "tiebreak_primary 1",
        "tiebreak_right_to_acknowledge{right=\"paired\"} 1",
        "tiebreak_votes_reachable 3",
        "tiebreak_witness_up 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        assert!(name.starts_with("tiebreak_") && value.parse::<f64>().is_ok(), "{line}");
        let family = name.split('{').next().unwrap_or("");
        assert!(page.contains(&format!("# TYPE {family} ")), "{family} has no type");
    }
    for name in [
        "tiebreak_promotions_total{reason=\"elected\"}",
        "tiebreak_hook_runs_total{hook=\"promote\",outcome=\"good\"}",
        "tiebreak_hook_seconds_total{hook=\"promote\"}",
        "tiebreak_syncs_total",
        "tiebreak_round_trip_seconds{to=\"peer\"}",
        "tiebreak_lease_left_seconds",
    ] {
        assert!(stage.metric(A, name) > Some(0.0), "{name}");
    }
    assert_eq!(stage.metric(W, "tiebreak_witness_clusters"), Some(1.0));
    assert!(stage.metric(W, "tiebreak_witness_promised_term{cluster=\"orders\"}") >= Some(2.0));
    assert!(stage.metric(W, "tiebreak_syncs_total") >= Some(1.0));
    // The demote takes as long as this looks at it; the answer does not.
    stage.on("demote", A, "while [ ! -e $here/go ]; do sleep 0.05; done");
    stage.cut(A, B);
    stage.cut(A, W);
    stage.until("a stops", |stage| stage.state(A)["service"] == "demoting");
    assert_eq!(stage.code(A, "/primary"), Some(503));
    std::fs::write(stage.place("go"), "").expect("written");
    stage.until_primary(B);
    stage.check();
}

/// Shows: while paused the service is left alone, also over a restart of the agent; the socket is for its group only.
#[test]
fn a_paused_service_is_left_alone_until_it_is_resumed() {
    let mut stage = Stage::start(Choice::hooks(&["promote", "demote"]));
    stage.until_acts(A);
    let mode = std::fs::metadata(stage.place("run-a/agent.sock")).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    for node in [B, A] {
        let output = stage.tiebreak(node, "pause", &[]);
        assert!(output.status.success(), "{output:?}");
    }
    let runs = stage.hook_runs(A, "demote").len();
    stage.cut(A, B);
    stage.cut(A, W);
    stage.until("the votes go elsewhere", |stage| stage.state(B)["may_act"] == true);
    assert_eq!(stage.code(A, "/primary"), Some(503), "its right has ended");
    stage.until_acts(A);
    stage.stop(A);
    stage.until_acts(A);
    stage.run(A);
    stage.until("it is still paused", |stage| stage.state(A)["paused"] == true);
    stage.until_acts(A);
    assert_eq!(stage.hook_runs(A, "demote").len(), runs);
    assert_eq!(stage.hook_runs(B, "promote").len(), 0);
    stage.heal();
    for node in [A, B] {
        let output = stage.tiebreak(node, "resume", &[]);
        assert!(output.status.success(), "{output:?}");
    }
    stage.until("one node acts, the other one follows", |stage| {
        let states = [A, B].map(|node| stage.state(node)["role"].as_str().unwrap_or("").to_owned());
        states == ["primary", "replica"] || states == ["replica", "primary"]
    });
    let history = said(&stage.tiebreak(A, "history", &["--json"]));
    assert!(history.contains("\"pause\"") && history.contains("\"resume\""), "{history}");
}

/// Shows: the doctor finds nothing wrong with a cluster that works, and tells the true cause of what does not: a node that
/// is down, a key that is not the pinned one, times that do not fit.
#[test]
fn the_doctor_tells_the_true_cause() {
    let mut stage = Stage::start(Choice::hooks(&["promote", "demote"]));
    let doctor = |stage: &Stage| {
        let output = stage.tiebreak(A, "doctor", &["--json", "--timeout", "10s"]);
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let found: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        (output.status.code(), found)
    };
    let about = |found: &[Value], about: &str| {
        let finding =
            found.iter().find(|finding| finding["about"].as_str().is_some_and(|is| is.starts_with(about)));
        let finding = finding.unwrap_or_else(|| panic!("nothing about {about}: {found:?}"));
        (
            finding["verdict"].as_str().unwrap_or("").to_owned(),
            finding["words"].as_str().unwrap_or("").to_owned(),
        )
    };
    let (code, found) = doctor(&stage);
    assert_eq!(code, Some(1), "there is no watchdog, which is doubtful: {found:?}");
    assert_eq!(about(&found, "watchdog").0, "doubtful");
    for what in ["times", "key", "peer b", "witness w", "clock"] {
        let (verdict, words) = about(&found, what);
        assert_eq!(verdict, "good", "{what}: {words}");
    }
    assert!(about(&found, "disk sync").1.contains("of a lease of 5s"));
    // Another key than the pinned one answers.
    let good = std::fs::read_to_string(stage.config(A)).expect("the file");
    let stranger = tiebreak::Identity::generate().expect("a key").fingerprint().to_string();
    let pinned = good.lines().filter(|line| line.starts_with("keys")).nth(1).expect("the witness's");
    std::fs::write(stage.config(A), good.replace(pinned, &format!("keys = [\"{stranger}\"]")))
        .expect("written");
    let (code, found) = doctor(&stage);
    let (verdict, words) = about(&found, "witness w");
    assert!(code == Some(2) && verdict == "wrong" && words.contains("instead of"), "{words}");
    std::fs::write(stage.config(A), &good).expect("written");
    stage.kill(B);
    let (_, found) = doctor(&stage);
    let (verdict, words) = about(&found, "peer b");
    assert!(verdict == "wrong" && words.contains("firewall"), "{words}");
    let broken = good.replace("[agent.times]", "[agent.times]\ndemote = \"1m\"");
    std::fs::write(stage.config(A), broken).expect("written");
    let (_, found) = doctor(&stage);
    assert!(about(&found, "configuration").1.contains("demote 60s"), "{found:?}");
}

/// Shows: a drill ends by itself, and meanwhile it is what it says.
#[test]
fn a_drill_is_bounded_in_time_and_ends_by_itself() {
    let mut stage = Stage::start(Choice::hooks(&["promote", "demote"]));
    stage.until_acts(A);
    let output = stage.tiebreak(A, "drill", &["partition", "--for", "15s"]);
    assert!(output.status.success(), "{output:?}");
    stage.until_primary(B);
    stage.until_pair(B);
    let output = stage.tiebreak(B, "drill", &["freeze", "--for", "15s"]);
    assert!(output.status.success(), "{output:?}");
    stage.until_primary(A);
    stage.until_pair(A);
    let output = stage.tiebreak(A, "drill", &["partition", "--for", "1h"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = stage.tiebreak(B, "drill", &["kill"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stage.ended(B), None, "by a signal");
    stage.run(B);
    stage.until_pair(A);
}

/// Shows: SIGHUP takes over what can change, a wrong file changes nothing, and a node marked so never leads by itself.
#[test]
fn a_reload_takes_over_the_marks_and_a_wrong_file_changes_nothing() {
    let stage = Stage::start(Choice::hooks(&["promote", "demote"]));
    stage.until_acts(A);
    let good = std::fs::read_to_string(stage.config(A)).expect("the file");
    let log = |stage: &Stage| std::fs::read_to_string(stage.place("a.log")).unwrap_or_default();
    std::fs::write(stage.config(A), good.replace("[agent]\n", "[agent]\nno_failovr = true\n"))
        .expect("written");
    stage.signal(A, Signal::HUP);
    stage.until("the wrong file is refused", |stage| log(stage).contains("did you mean `no_failover`"));
    // Good for itself, and not with the lease that is in force until the next start.
    let longer = good.replace("lease = \"5s\"", "lease = \"40s\"");
    let longer = longer.replace("[agent.times]\n", "[agent.times]\ndemote = \"8s\"\n");
    std::fs::write(stage.config(A), longer).expect("written");
    stage.signal(A, Signal::HUP);
    stage.until("a time that does not fit is refused", |stage| log(stage).contains("demote 8s"));
    assert_eq!(stage.code(A, "/primary"), Some(200));
    std::fs::write(stage.config(A), good.replace("[agent]\n", "[agent]\nno_failover = true\n"))
        .expect("written");
    stage.signal(A, Signal::HUP);
    stage.until_pair(B);
    assert!(stage.hook_runs(A, "demote").last().is_some_and(|run| run.contains("no failover")));
    stage.check();
}

/// Shows: a node that is marked so does not take over from a leader that died, and follows it when it is back.
#[test]
fn a_node_without_failover_waits_for_the_other_one() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    choice.agent_of_b = "no_failover = true".into();
    let mut stage = Stage::start(choice);
    stage.until_acts(A);
    let group = stage.service_group(A).expect("it runs");
    stage.kill(A);
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    // By then it would have stood: its promise is over, and it says that it follows nobody.
    let metric = |stage: &Stage, name: &str| stage.metric(B, name);
    stage.until("the witness alone is reached", |stage| {
        metric(stage, "tiebreak_votes_reachable") == Some(2.0)
    });
    let began = std::time::Instant::now();
    stage.until("nothing happens for some leases", |stage| {
        assert_eq!(stage.code(B, "/primary"), Some(503));
        assert_eq!(stage.state(B)["may_act"], false);
        began.elapsed() > std::time::Duration::from_secs(12)
    });
    stage.run(A);
    stage.until_pair(A);
    assert_eq!(stage.hook_runs(B, "promote").len(), 0);
    stage.check();
}

/// Shows: the preferred node gets the service back only if that is asked for.
#[test]
fn the_preferred_node_gets_the_service_back_if_that_is_asked_for() {
    let mut choice = Choice::hooks(&["promote", "demote"]);
    choice.agent = "preferred = \"b\"\nfail_back = \"500ms\"".into();
    let mut stage = Stage::prepare(choice);
    for node in [W, A, B] {
        stage.run(node);
    }
    stage.until_pair(B);
    let history = said(&stage.tiebreak(A, "history", &["--json"]));
    assert!(history.contains("preferred node"), "{history}");
    let watched = stage.tiebreak(B, "watch", &["--once", "--json"]);
    let state: Value = serde_json::from_slice(&watched.stdout).expect("one object");
    assert_eq!(state["role"], "primary");
    stage.check();
}
