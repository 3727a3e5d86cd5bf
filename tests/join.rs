//! Joining by codes, as people do it: real processes, from an invitation to a pair that leads, and what goes wrong.
#![cfg(feature = "cli")]
#![allow(clippy::disallowed_methods, reason = "the deadline of a test")]

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);

/// A process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn hang_up(&self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill").success());
    }

    /// As systemd stops it.
    fn stop(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        assert!(self.0.wait().expect("it ends").success());
    }
}

struct Stage {
    directory: TempDir,
    ports: Vec<SocketAddr>,
}

impl Stage {
    fn new() -> Stage {
        let sockets: Vec<UdpSocket> =
            (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
        let ports = sockets.iter().map(|socket| socket.local_addr().expect("bound")).collect();
        let stage = Stage { directory: tempfile::tempdir().expect("a directory"), ports };
        stage.make_witness("w", 2);
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make_witness(&self, name: &str, port: usize) {
        let file = self.path(&format!("{name}.toml"));
        let at = self.ports[port];
        let text = format!(
            "node = \"{name}\"\nkey = \"{name}.pem\"\nstate = \"{name}\"\nlisten = [\"{at}\"]\ncluster = []\n"
        );
        fs::write(&file, text).expect("written");
        good(&tiebreak(&["keys", "new"], &[&self.path(&format!("{name}.pem"))]));
        good(&tiebreak(&["init", "--config"], &[&file]));
    }

    fn start(&self, arguments: &[&str], name: &str, more: &[&str]) -> Running {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(&format!("{name}.log")))
            .expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
            .args(arguments)
            .arg("--config")
            .arg(self.path(&format!("{name}.toml")))
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a handle"))
            .stderr(log)
            .spawn()
            .expect("the binary runs");
        Running(child)
    }

    fn witness(&self, name: &str) -> Running {
        self.start(&["witness"], name, &[])
    }

    /// A command that runs only where this node leads.
    fn agent(&self, name: &str) -> Running {
        let file = self.path(&format!("{name}.toml"));
        let mut text = fs::read_to_string(&file).expect("a file");
        if !text.contains("[agent]") {
            let runtime = self.path(&format!("run-{name}"));
            text += &format!("\n[agent]\nruntime = {:?}\n", runtime.display().to_string());
            fs::write(&file, text).expect("written");
        }
        self.start(&["run"], name, &["--", "sleep", "1000"])
    }

    fn invite(&self, witness: &str, cluster: &str) -> String {
        let file = self.path(&format!("{witness}.toml"));
        printed(&tiebreak(&["invite", cluster, "--config"], &[&file]))
    }

    fn join_command(&self, code: &str, name: &str, port: usize) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.args(["join", code, "--name", name, "--listen", &self.ports[port].to_string()]);
        command.arg("--config").arg(self.path(&format!("{name}.toml")));
        command.arg("--state").arg(self.path(&format!("state-{name}")));
        command.stdin(Stdio::null());
        command
    }

    fn join(&self, code: &str, name: &str, port: usize) -> Output {
        self.join_command(code, name, port).output().expect("the binary runs")
    }

    fn status(&self, name: &str) -> (Option<i32>, String) {
        let file = self.path(&format!("{name}.toml"));
        let output = tiebreak(&["status", "--json", "--timeout", "2s", "--config"], &[&file]);
        (output.status.code(), told(&output))
    }

    fn until_well(&self, name: &str) -> String {
        self.until(name, |code, _| code == Some(0))
    }

    fn until_alone(&self, name: &str) {
        self.until(name, |_, said| said.contains("goes on alone"));
    }

    fn until(&self, name: &str, is_so: impl Fn(Option<i32>, &str) -> bool) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (code, said) = self.status(name);
            if is_so(code, &said) {
                return said;
            }
            if Instant::now() > deadline {
                let logs: Vec<String> = ["a", "b", "w"]
                    .iter()
                    .map(|node| fs::read_to_string(self.path(&format!("{node}.log"))).unwrap_or_default())
                    .collect();
                panic!("never so: {said}\n{}", logs.join("\n---\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn pair(&self) -> (Running, Running, Running) {
        let witness = self.witness("w");
        let second = retried(|| self.join(&self.invite("w", "orders"), "a", 0));
        let a = self.agent("a");
        good(&self.join(&printed(&second), "b", 1));
        let b = self.agent("b");
        self.until_well("a");
        (witness, a, b)
    }
}

/// Again until it works: what was started may not listen yet.
fn retried(attempt: impl Fn() -> Output) -> Output {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let output = attempt();
        if output.status.success() {
            return output;
        }
        assert!(Instant::now() < deadline, "{}", told(&output));
    }
}

fn tiebreak(arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(arguments).args(paths).stdin(Stdio::null()).output().expect("the binary runs")
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", told(output));
}

fn printed(output: &Output) -> String {
    good(output);
    String::from_utf8(output.stdout.clone()).expect("text").trim().to_owned()
}

fn refused(output: &Output, why: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", told(output));
    assert!(told(output).contains(why), "{why:?} is not in: {}", told(output));
}

/// The term of the leader, out of the JSON of a status.
fn token(status: &str) -> String {
    let status: serde_json::Value =
        serde_json::from_str(status.lines().next().expect("a line")).expect("JSON");
    let nodes = status["nodes"].as_array().expect("nodes");
    let leader = nodes.iter().find(|node| node["report"]["acts"] == true).expect("a leader");
    leader["report"]["token"].to_string()
}

#[test]
fn two_codes_make_a_pair_that_leads_and_lasts_over_a_restart_of_the_witness() {
    let stage = Stage::new();
    let witness = stage.witness("w");
    let first = stage.invite("w", "orders");
    let second = printed(&retried(|| stage.join(&first, "a", 0)));
    let a = stage.agent("a");
    drop(witness);
    let witness = stage.witness("w");
    good(&retried(|| stage.join(&second, "b", 1)));
    let _b = stage.agent("b");
    stage.until_well("a");
    let text = fs::read_to_string(stage.path("a.toml")).expect("a file");
    assert!(!text.contains("joining") && text.contains("[agent]"), "{text}");
    drop((witness, a));
    let _witness = stage.witness("w");
    let _a = stage.agent("a");
    stage.until_well("b");
    let listed = told(&tiebreak(&["clusters", "--config"], &[&stage.path("w.toml")]));
    assert!(listed.contains("orders (joined)") && listed.matches("tb1:").count() == 2, "{listed}");
}

#[test]
fn wrong_used_and_mistyped_codes_are_told_apart_and_leave_nothing() {
    let stage = Stage::new();
    let _witness = stage.witness("w");
    let old = stage.invite("w", "orders");
    let first = stage.invite("w", "orders");
    refused(&retried_until_reached(|| stage.join(&old, "a", 0)), "knows no such code");
    assert!(
        !stage.path("a.pem").exists() && !stage.path("a.toml").exists() && !stage.path("state-a").exists()
    );
    let mut typo = first.clone().into_bytes();
    typo[20] = if typo[20] == b'q' { b'r' } else { b'q' };
    let typo = stage.join(&String::from_utf8(typo).expect("text"), "a", 0);
    assert!(!typo.status.success() && told(&typo).contains("checksum"), "{}", told(&typo));
    let second = printed(&stage.join(&first, "a", 0));
    // Again with the same code: the same place, and a code that counts.
    let again = printed(&stage.join(&first, "a", 0));
    assert_eq!(second, again);
    refused(&stage.join(&first, "c", 3), "used by another node");
    assert!(!stage.path("c.pem").exists() && !stage.path("c.toml").exists());
    refused(&stage.join(&second, "c", 3), "is for a node called b");
    good(&stage.join(&second, "b", 1));
    let other = stage.directory.path().join("elsewhere");
    fs::create_dir(&other).expect("a directory");
    let mut thief = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    thief.args(["join", &second, "--listen", &stage.ports[3].to_string()]);
    thief.arg("--config").arg(other.join("b.toml")).arg("--state").arg(other.join("state"));
    refused(&thief.output().expect("it runs"), "used by another node");
    let file = stage.path("w.toml");
    refused(&tiebreak(&["invite", "orders", "--config"], &[&file]), "has replicas");
}

fn retried_until_reached(attempt: impl Fn() -> Output) -> Output {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let output = attempt();
        if !told(&output).contains("cannot be asked") {
            return output;
        }
        assert!(Instant::now() < deadline, "{}", told(&output));
    }
}

#[test]
fn a_join_that_is_killed_at_any_time_goes_on_with_the_same_command() {
    let stage = Stage::new();
    let _witness = stage.witness("w");
    let first = stage.invite("w", "orders");
    retried_until_reached(|| stage.join("tbj1-0", "a", 0));
    let killed_often = |code: &str, name: &str, port: usize| {
        for pause in 0..40 {
            let mut command = stage.join_command(code, name, port);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
            std::thread::sleep(Duration::from_millis(pause * 3));
            let _ = child.kill();
            let _ = child.wait();
        }
        retried(|| stage.join(code, name, port))
    };
    let second = printed(&killed_often(&first, "a", 0));
    killed_often(&second, "b", 1);
    let (_a, _b) = (stage.agent("a"), stage.agent("b"));
    stage.until_well("a");
    for name in ["a", "b"] {
        assert!(!stage.path(&format!("{name}.toml.joining")).exists());
        assert!(!stage.path(&format!("{name}.toml.draft")).exists());
    }
}

#[test]
fn another_witness_is_taken_in_while_both_run() {
    let stage = Stage::new();
    let (witness, a, b) = stage.pair();
    let before = token(&stage.until_well("a"));
    stage.make_witness("v", 3);
    let _new = stage.witness("v");
    let code = stage.invite("v", "orders");
    for (name, agent) in [("a", &a), ("b", &b)] {
        let file = stage.path(&format!("{name}.toml"));
        retried(|| tiebreak(&["replace-witness", &code, "--config"], &[&file]));
        agent.hang_up();
    }
    drop(witness);
    let after = token(&stage.until_well("a"));
    assert_eq!(before, after, "the leader has not changed, and its term neither");
    stage.until_well("b");
}

#[test]
fn who_has_left_is_cut_off_and_another_one_may_join() {
    let stage = Stage::new();
    let (_witness, _a, b) = stage.pair();
    drop(b);
    let file = stage.path("b.toml");
    good(&tiebreak(&["leave", "--config"], &[&file]));
    refused(&tiebreak(&["leave", "--config"], &[&file]), "no such key");
    let listed = told(&tiebreak(&["clusters", "--config"], &[&stage.path("w.toml")]));
    assert!(listed.contains("b  has not joined"), "{listed}");
    let code = printed(&tiebreak(&["invite", "--config"], &[&stage.path("a.toml")]));
    let other = stage.path("new");
    fs::create_dir(&other).expect("a directory");
    let join = || {
        let mut join = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        join.args(["join", &code, "--listen", &stage.ports[3].to_string()]);
        join.arg("--config").arg(stage.path("n.toml")).arg("--state").arg(other.join("state"));
        join.output().expect("it runs")
    };
    good(&join());
    // Another machine of the same name: the first one is running, and takes it in.
    let _n = stage.agent("n");
    stage.until_well("a");
}

#[test]
fn a_replica_whose_state_is_lost_begins_blank_with_the_key_it_had() {
    let stage = Stage::new();
    let (_witness, _a, b) = stage.pair();
    drop(b);
    stage.until_alone("a");
    fs::remove_dir_all(stage.path("state-b")).expect("removed");
    good(&tiebreak(&["init", "--blank", "--config"], &[&stage.path("b.toml")]));
    let _b = stage.agent("b");
    stage.until_well("a");
}

#[test]
fn a_replica_that_is_lost_with_its_key_gives_its_place_to_another_machine() {
    let stage = Stage::new();
    let (witness, _a, b) = stage.pair();
    let lost = printed(&tiebreak(&["keys", "show"], &[&stage.path("b.pem")]));
    drop(b);
    stage.until_alone("a");
    for file in ["b.pem", "b.toml"] {
        fs::remove_file(stage.path(file)).expect("removed");
    }
    fs::remove_dir_all(stage.path("state-b")).expect("removed");
    // The one that is left cannot sign the other one off: the registration goes, and both join anew.
    refused(&tiebreak(&["invite", "--config"], &[&stage.path("a.toml")]), "b has joined");
    fs::remove_file(stage.path("w").join("registrations/orders.cluster")).expect("removed");
    witness.hang_up();
    let code = stage.invite("w", "orders");
    retried(|| stage.join(&code, "a", 0));
    let second = printed(&retried(|| tiebreak(&["invite", "--config"], &[&stage.path("a.toml")])));
    good(&stage.join(&second, "b", 1));
    let _b = stage.agent("b");
    stage.until_well("a");
    let listed = told(&tiebreak(&["clusters", "--config"], &[&stage.path("w.toml")]));
    assert!(listed.matches("tb1:").count() == 2 && !listed.contains(&lost), "{listed}");
}

#[test]
fn each_node_is_restarted_in_its_turn_as_an_upgrade_does() {
    let stage = Stage::new();
    let (witness, a, b) = stage.pair();
    witness.stop();
    let _witness = stage.witness("w");
    stage.until_well("a");
    b.stop();
    let _b = stage.agent("b");
    stage.until_well("a");
    let file = stage.path("a.toml");
    retried(|| tiebreak(&["switchover", "--wait", "--config"], &[&file]));
    a.stop();
    let _a = stage.agent("a");
    let status = stage.until_well("b");
    let after: serde_json::Value =
        serde_json::from_str(status.lines().next().expect("a line")).expect("JSON");
    let leads = |node: &serde_json::Value| node["node"] == "b" && node["report"]["acts"] == true;
    assert!(after["nodes"].as_array().expect("nodes").iter().any(leads), "{status}");
}

#[test]
fn keys_change_while_the_pair_runs_and_the_leader_stays() {
    let stage = Stage::new();
    let (witness, a, b) = stage.pair();
    let before = token(&stage.until_well("a"));
    let (file, other) = (stage.path("a.toml"), stage.path("b.toml"));
    let new = printed(&tiebreak(&["keys", "rotate", "--config"], &[&file]));
    let old = printed(&tiebreak(&["keys", "show"], &[&stage.path("a.pem")]));
    refused(
        &tiebreak(&["keys", "rotate", "--finish", "--config"], &[&file]),
        "does not take the new key yet",
    );
    refused(
        &tiebreak(&["keys", "rotate", "--drop", "--config"], &[&file]),
        "has not changed to its new key yet",
    );
    let text = fs::read_to_string(&other).expect("a file");
    fs::write(&other, text.replace(&old, &format!("{old}\", \"{new}"))).expect("written");
    b.hang_up();
    retried(|| tiebreak(&["keys", "rotate", "--finish", "--config"], &[&file]));
    a.hang_up();
    // Nobody lists the old key any more: links that were made with it are cut.
    retried(|| tiebreak(&["keys", "rotate", "--drop", "--config"], &[&file]));
    let text = fs::read_to_string(&other).expect("a file");
    fs::write(&other, text.replace(&format!("{old}\", \"{new}"), &new)).expect("written");
    b.hang_up();
    assert_eq!(printed(&tiebreak(&["keys", "show"], &[&stage.path("a.pem")])), new);
    let listed = told(&tiebreak(&["clusters", "--config"], &[&stage.path("w.toml")]));
    assert!(listed.contains(&new) && !listed.contains(&old), "{listed}");
    // The witness's own key: both replicas list the new one first.
    let witness_old = printed(&tiebreak(&["keys", "show"], &[&stage.path("w.pem")]));
    // Root makes it, and the witness's user has to be able to read it.
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(stage.path("w.pem"), Some(12345), Some(12345)).expect("root may");
    }
    let witness_new = printed(&tiebreak(&["keys", "rotate", "--config"], &[&stage.path("w.toml")]));
    if is_root {
        let made = fs::metadata(stage.path("w.pem.next")).expect("the new key");
        assert_eq!((made.uid(), made.gid()), (12345, 12345));
    }
    for (path, agent) in [(&file, &a), (&other, &b)] {
        let text = fs::read_to_string(path).expect("a file");
        fs::write(path, text.replace(&witness_old, &format!("{witness_old}\", \"{witness_new}")))
            .expect("written");
        agent.hang_up();
    }
    good(&tiebreak(&["keys", "rotate", "--finish", "--config"], &[&stage.path("w.toml")]));
    witness.hang_up();
    for (path, agent) in [(&file, &a), (&other, &b)] {
        let text = fs::read_to_string(path).expect("a file");
        fs::write(path, text.replace(&format!("{witness_old}\", \"{witness_new}"), &witness_new))
            .expect("written");
        agent.hang_up();
    }
    assert_eq!(token(&stage.until_well("b")), before, "the leader and its term stay");
}

/// Shows: a witness that reads the registration of a cluster which it did not find when it started serves it, and lives.
#[test]
fn a_registration_that_comes_back_while_the_witness_runs_is_served() {
    let stage = Stage::new();
    let (witness, _a, _b) = stage.pair();
    witness.stop();
    let (place, aside) = (stage.path("w/registrations/orders.cluster"), stage.path("aside"));
    fs::rename(&place, &aside).expect("it is there");
    let mut witness = stage.witness("w");
    let code = stage.invite("w", "bills");
    good(&retried_until_reached(|| stage.join(&code, "c", 3)));
    fs::rename(&aside, &place).expect("it is there");
    // Whatever is registered is read again.
    good(&tiebreak(&["keys", "rotate", "--config"], &[&stage.path("c.toml")]));
    stage.until_well("a");
    assert!(witness.0.try_wait().expect("a process").is_none(), "the witness has ended");
}

#[test]
fn a_key_speaks_for_no_other_node() {
    let stage = Stage::new();
    let (_witness, a, b) = stage.pair();
    drop((a, b));
    // Whoever has the key of A is A, and not B.
    let [first, second] =
        ["a.pem", "b.pem"].map(|key| printed(&tiebreak(&["keys", "show"], &[&stage.path(key)])));
    let file = stage.path("b.toml");
    let text = fs::read_to_string(&file).expect("a file");
    fs::write(&file, text.replace("b.pem", "a.pem").replace(&first, &second)).expect("written");
    let _b = stage.agent("b");
    let deadline = Instant::now() + DEADLINE;
    loop {
        let log = fs::read_to_string(stage.path("b.log")).expect("a log");
        if log.contains("this key speaks as a of orders here, not as b") {
            break;
        }
        assert!(Instant::now() < deadline, "{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn of_two_that_race_for_one_code_one_gets_in() {
    let stage = Stage::new();
    let _witness = stage.witness("w");
    let code = stage.invite("w", "orders");
    retried_until_reached(|| stage.join(&stage.invite("w", "warm"), "warm", 3));
    let racers: Vec<Child> = (0..6)
        .map(|number| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
            let here = stage.path(&format!("racer-{number}"));
            fs::create_dir(&here).expect("a directory");
            command.args(["join", &code, "--name", "a", "--listen", "127.0.0.1:7"]);
            command.arg("--config").arg(here.join("a.toml")).arg("--state").arg(here.join("state"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
        })
        .collect();
    let ended: Vec<Output> =
        racers.into_iter().map(|racer| racer.wait_with_output().expect("it ends")).collect();
    let (won, lost): (Vec<&Output>, Vec<&Output>) = ended.iter().partition(|output| output.status.success());
    assert_eq!(won.len(), 1, "{ended:?}");
    for output in lost {
        refused(output, "used by another node");
    }
    let listed = told(&tiebreak(&["clusters", "--config"], &[&stage.path("w.toml")]));
    assert!(listed.contains("orders (joined)"), "{listed}");
}

#[test]
fn another_key_at_the_witness_s_address_is_told_nothing() {
    let stage = Stage::new();
    let code = stage.invite("w", "orders");
    // The same address and a cluster of the same name, and another key.
    stage.make_witness("evil", 2);
    stage.invite("evil", "orders");
    let _evil = stage.witness("evil");
    let deadline = Instant::now() + DEADLINE;
    loop {
        let output = stage.join(&code, "a", 0);
        assert!(!output.status.success());
        if told(&output).contains("it showed the key") {
            break;
        }
        assert!(Instant::now() < deadline, "{}", told(&output));
    }
    let listed = told(&tiebreak(&["clusters", "--config"], &[&stage.path("evil.toml")]));
    assert!(listed.is_empty(), "{listed}");
    assert!(!stage.path("a.toml").exists() && !stage.path("state-a").exists());
}
