//! The shipped examples: the configuration is good, and each hook does what the contract wants, against stand-ins for the
//! programs that it calls.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/agent")
}

#[test]
fn the_shipped_configuration_is_good() {
    let run = |verb: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.arg(verb).arg("--config").arg(deploy().join("a.toml")).arg("--check-config").args(more);
        command.output().expect("the binary runs")
    };
    for (verb, more) in [("agent", &[][..]), ("run", &["--", "sleep", "1"][..]), ("init", &[][..])] {
        let output = run(verb, more);
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A directory that comes first in PATH, with stand-ins that keep their state in files.
struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new(programs: &[(&str, &str)]) -> Machine {
        let directory = TempDir::new().expect("a directory");
        for (name, text) in programs {
            let path = directory.path().join(name);
            fs::write(&path, format!("#!/bin/sh\nhere=$(dirname \"$0\")\n{text}\n")).expect("a stand-in");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        Machine { directory }
    }

    fn has(&self, file: &str) -> bool {
        self.directory.path().join(file).exists()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.directory.path().join(file), text).expect("written");
    }

    fn said(&self, file: &str) -> String {
        fs::read_to_string(self.directory.path().join(file)).unwrap_or_default()
    }

    /// Runs a hook as the agent would, and returns its exit code.
    fn run(&self, script: &str, arguments: &[&str], environment: &[(&str, &str)]) -> i32 {
        let path =
            format!("{}:{}", self.directory.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(deploy().join("hooks").join(script));
        command.args(arguments).env("PATH", path).env("TIEBREAK_RUNTIME", self.directory.path());
        command
            .env("TIEBREAK_ROLE", "leader")
            .env("TIEBREAK_ACKNOWLEDGE", "both")
            .env("TIEBREAK_MAY_DESTROY", "no");
        command.envs(environment.iter().copied());
        command.status().expect("the hook runs").code().expect("by itself")
    }
}

const STANDBY: &[(&str, &str)] = &[("TIEBREAK_ROLE", "standby")];

#[test]
fn the_systemd_hook_starts_stops_and_checks_a_unit() {
    let machine = Machine::new(&[(
        "systemctl",
        "case $1 in start) : > $here/active;; stop) [ -e $here/stuck ] && exit 1; rm -f $here/active;;\n\
         kill) rm -f $here/stuck $here/active;; is-active) [ -e $here/active ];; esac",
    )]);
    assert_eq!(machine.run("systemd", &["check"], &[]), 2);
    assert_eq!(machine.run("systemd", &["check"], STANDBY), 0);
    assert_eq!(machine.run("systemd", &["promote"], &[]), 0);
    assert_eq!(machine.run("systemd", &["check"], &[]), 0);
    machine.write("stuck", "");
    assert_ne!(machine.run("systemd", &["demote"], &[]), 0, "a stop that fails is told");
    assert!(machine.has("active"));
    assert_eq!(machine.run("systemd", &["demote"], &[]), 0, "the next one kills");
    assert!(!machine.has("active") && !machine.has("stopping"));
}

#[test]
fn the_address_hook_moves_an_address() {
    let ip = "case \"$*\" in *show*) [ -e $here/blind ] && exit 1; cat $here/addresses 2>/dev/null; :;;\n\
              *address\\ add*) echo \"2: eth0 inet 10.0.0.10/24 scope global\" > $here/addresses;;\n\
              *address\\ del*) rm $here/addresses;; esac";
    let machine = Machine::new(&[("ip", ip), ("arping", ": > $here/told")]);
    assert_eq!(machine.run("address", &["check"], &[]), 2);
    assert_eq!(machine.run("address", &["demote"], &[]), 0, "nothing to do is no failure");
    for _ in 0..2 {
        assert_eq!(machine.run("address", &["promote"], &[]), 0);
    }
    assert!(machine.has("told"), "the neighbours are told");
    assert_eq!(machine.run("address", &["check"], &[]), 0);
    assert_eq!(machine.run("address", &["check"], STANDBY), 2, "a standby must not have it");
    // On an interface that every machine has.
    machine.write("blind", "");
    assert_ne!(
        machine.run("address", &["demote"], &[("INTERFACE", "lo")]),
        0,
        "who cannot look does not know"
    );
    fs::remove_file(machine.directory.path().join("blind")).expect("removed");
    assert_eq!(machine.run("address", &["demote"], &[]), 0);
    assert_eq!(machine.run("address", &["check"], STANDBY), 0);
}

#[test]
fn the_keepalived_hook_gives_and_takes_the_address() {
    // keepalived follows its file, unless it is gone.
    let ip = "[ -e $here/blind ] && exit 1\n\
              case \"$*\" in *del*) rm -f $here/address; exit;; esac\n\
              [ -e $here/dead ] || if [ \"$(cat $here/state)\" = 0 ]; then : > $here/address; else rm -f $here/address; fi\n\
              [ ! -e $here/address ] || echo '2: eth0 inet 10.0.0.10/24 scope global'";
    let machine = Machine::new(&[("ip", ip)]);
    let state = machine.directory.path().join("state");
    let state = state.to_str().expect("a path");
    let run = |hook: &str, role: &str| {
        machine.run("keepalived", &[hook], &[("STATE", state), ("WAIT", "1"), ("TIEBREAK_ROLE", role)])
    };
    assert_eq!(run("demote", "standby"), 0);
    assert_eq!(machine.said("state"), "1\n");
    assert_eq!((run("check", "standby"), run("check", "leader")), (0, 2));
    assert_eq!(run("promote", "leader"), 0);
    assert_eq!((run("check", "standby"), run("check", "leader")), (2, 0));
    machine.write("dead", "");
    assert_eq!(run("demote", "leader"), 0, "what keepalived leaves is taken by hand");
    assert!(!machine.has("address"));
    assert_ne!(run("promote", "leader"), 0, "nobody gives it the address");
    machine.write("blind", "");
    assert_ne!(run("demote", "leader"), 0, "who cannot look does not know");
}

#[test]
fn the_drbd_hook_promotes_demotes_and_says_when_data_would_be_lost() {
    let drbdadm = "case $1 in role) [ -e $here/deaf ] && exit 10; cat $here/role;; dstate) cat $here/disks;; cstate) cat $here/connection;; sh-dev) echo /dev/drbd7;;\n\
                   primary) echo Primary/Secondary > $here/role;; secondary) echo Secondary/Secondary > $here/role;;\n\
                   connect) echo \"$*\" > $here/connected; echo Connected > $here/connection;; adjust) : > $here/adjusted;; esac";
    let mount = [
        ("mount", "echo \"$*\" > $here/mounted"),
        ("umount", "[ -e $here/busy ] && exit 1; rm $here/mounted"),
        ("mountpoint", "[ -e $here/mounted ]"),
        ("drbdadm", drbdadm),
    ];
    let machine = Machine::new(&mount);
    machine.write("role", "Secondary/Secondary\n");
    machine.write("disks", "UpToDate/UpToDate\n");
    machine.write("connection", "Connected\n");
    assert_eq!(machine.run("drbd", &["check"], STANDBY), 0);
    assert_eq!(machine.run("drbd", &["promote"], &[]), 0);
    assert!(
        machine.said("mounted").starts_with("/dev/drbd7 ") && machine.said("role").starts_with("Primary")
    );
    assert_eq!(machine.run("drbd", &["check"], &[]), 0);
    // The peer is gone: nothing is acknowledged alone until the votes allow it.
    machine.write("disks", "UpToDate/DUnknown\n");
    assert_eq!(machine.run("drbd", &["check"], &[]), 1);
    assert!(!machine.has("alone"));
    assert_eq!(machine.run("drbd", &["solo"], &[]), 0);
    assert!(machine.has("alone"));
    assert_eq!(machine.run("drbd", &["paired"], &[]), 0);
    assert!(!machine.has("alone"));
    // Its peer was frozen, and DRBD has given the connection up for good: only the leader asks again, and keeps what it has.
    machine.write("connection", "StandAlone\n");
    assert_eq!(machine.run("drbd", &["check"], STANDBY), 1);
    assert!(!machine.has("connected"));
    assert_eq!(machine.run("drbd", &["check"], &[]), 1);
    assert_eq!(machine.said("connected"), "connect orders\n");
    fs::remove_file(machine.directory.path().join("connected")).expect("removed");
    // A standby that still copies lacks something, and a leader without its disk is not well.
    machine.write("disks", "Inconsistent/UpToDate\n");
    assert_eq!(machine.run("drbd", &["check"], STANDBY), 1);
    machine.write("disks", "Diskless/UpToDate\n");
    assert_eq!(machine.run("drbd", &["check"], &[]), 2);
    machine.write("busy", "");
    assert_ne!(machine.run("drbd", &["demote"], &[]), 0, "a file system that is in use is told");
    fs::remove_file(machine.directory.path().join("busy")).expect("removed");
    machine.write("deaf", "");
    assert_ne!(
        machine.run("drbd", &["demote"], &[("MODULE", "/proc/self")]),
        0,
        "who cannot ask does not know"
    );
    assert_eq!(machine.run("drbd", &["demote"], &[("MODULE", "/proc/none")]), 0, "no module, no primary");
    machine.write("mounted", "");
    fs::remove_file(machine.directory.path().join("deaf")).expect("removed");
    assert_eq!(machine.run("drbd", &["demote"], &[]), 0);
    assert!(machine.said("role").starts_with("Secondary") && !machine.has("mounted"));
    // Changes of this node's own are thrown away only when the loss is on record.
    machine.write("connection", "StandAlone\n");
    assert_eq!(machine.run("drbd", &["follow"], STANDBY), 3);
    assert!(!machine.has("connected"));
    let may = [("TIEBREAK_ROLE", "standby"), ("TIEBREAK_MAY_DESTROY", "yes")];
    assert_eq!(machine.run("drbd", &["follow"], &may), 0);
    assert!(machine.said("connected").contains("--discard-my-data"));
}

#[test]
fn the_event_hook_writes_to_the_log_what_people_are_woken_for() {
    let machine = Machine::new(&[("logger", "echo \"$*\" > $here/logged")]);
    let environment =
        [("TIEBREAK_CLUSTER", "orders"), ("TIEBREAK_NODE", "a"), ("TIEBREAK_EVENT_TEXT", "b is gone")];
    assert_eq!(machine.run("log-event", &["on_event", "redundancy_lost"], &environment), 0);
    assert_eq!(
        machine.said("logged"),
        "-p daemon.crit -t tiebreak orders on a: redundancy_lost (b is gone)\n"
    );
    assert_eq!(machine.run("log-event", &["on_event", "leads"], &environment), 0);
    assert!(machine.said("logged").contains("daemon.notice"));
}
