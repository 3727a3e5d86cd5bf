//! Three hosts and a place for clients: network namespaces, each two joined by a pair of virtual interfaces of their own,
//! so that each link can be cut by itself.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const A: usize = 0;
pub const B: usize = 1;
pub const W: usize = 2;
/// Where the clients are.
pub const C: usize = 3;
pub const NAMES: [&str; 4] = ["a", "b", "w", "c"];

/// The links. The first end of number n has the address 10.77.n.1, the other one 10.77.n.2.
const LINKS: [(usize, usize); 5] = [(A, B), (A, W), (B, W), (A, C), (B, C)];

static MADE: AtomicU32 = AtomicU32::new(0);

/// An address of `at`, as `from` reaches it.
pub fn address(at: usize, from: usize) -> String {
    let number =
        LINKS.iter().position(|link| *link == (at.min(from), at.max(from))).expect("they are linked");
    format!("10.77.{number}.{}", if at < from { 1 } else { 2 })
}

/// How a link is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Packets vanish.
    Drops,
    /// The interface is down: who sends is told so.
    Refuses,
}

pub struct Hosts {
    name: String,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..NAMES.len() {
            self.signal(host, Signal::KILL);
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(host)]).output();
        }
    }
}

fn ip(words: &str) -> Output {
    Command::new("ip").args(words.split(' ')).output().expect("ip runs")
}

#[track_caller]
fn must(words: &str) {
    let output = ip(words);
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Hosts {
    pub fn new() -> Hosts {
        let hosts =
            Hosts { name: format!("tb{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)) };
        for host in 0..NAMES.len() {
            must(&format!("netns add {}", hosts.namespace(host)));
            must(&format!("-n {} link set lo up", hosts.namespace(host)));
        }
        for (number, (one, other)) in LINKS.into_iter().enumerate() {
            let (here, there) = (hosts.namespace(one), hosts.namespace(other));
            let (near, far) = (interface(one, other), interface(other, one));
            must(&format!("link add {near} netns {here} type veth peer name {far} netns {there}"));
            for (place, interface, end) in [(&here, &near, 1), (&there, &far, 2)] {
                must(&format!("-n {place} address add 10.77.{number}.{end}/24 dev {interface}"));
                must(&format!("-n {place} link set {interface} up"));
            }
        }
        hosts
    }

    /// Whether hosts can be made here.
    pub fn possible() -> bool {
        let name = format!("tb{}-try", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        let made = made.is_ok_and(|output| output.status.success());
        made && ip(&format!("netns del {name}")).status.success()
    }

    fn namespace(&self, host: usize) -> String {
        format!("{}{}", self.name, NAMES[host])
    }

    fn mount(&self, host: usize) -> PathBuf {
        Path::new("/run/netns").join(self.namespace(host))
    }

    /// The calling thread, and what it starts from now on, is there.
    pub fn enter(&self, host: usize) {
        let file = File::open(self.mount(host)).expect("the namespace is there");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
    }

    /// Starts a process there.
    pub fn spawn(&self, host: usize, mut command: Command) -> Child {
        std::thread::scope(|scope| {
            let started = scope.spawn(move || {
                self.enter(host);
                command.spawn().expect("it can be started")
            });
            started.join().expect("started")
        })
    }

    /// Runs a process there to its end.
    pub fn run(&self, host: usize, mut command: Command) -> Output {
        std::thread::scope(|scope| {
            let ran = scope.spawn(move || {
                self.enter(host);
                command.output().expect("it can be started")
            });
            ran.join().expect("ran")
        })
    }

    /// Cuts the link between two.
    pub fn cut(&self, one: usize, other: usize, how: Cut) {
        if how == Cut::Refuses {
            return must(&format!("-n {} link set {} down", self.namespace(one), interface(one, other)));
        }
        for (from, to) in [(one, other), (other, one)] {
            must(&format!(
                "-n {} neigh replace {} lladdr 02:00:00:00:00:99 nud permanent dev {}",
                self.namespace(from),
                address(to, from),
                interface(from, to)
            ));
        }
    }

    /// Nobody reaches this host.
    pub fn isolate(&self, host: usize) {
        for (one, other) in LINKS {
            if one == host || other == host {
                self.cut(one, other, Cut::Drops);
            }
        }
    }

    /// All links are whole.
    pub fn heal(&self) {
        for (one, other) in LINKS {
            for (from, to) in [(one, other), (other, one)] {
                let (place, interface) = (self.namespace(from), interface(from, to));
                let _ = ip(&format!("-n {place} neigh del {} dev {interface}", address(to, from)));
                must(&format!("-n {place} link set {interface} up"));
            }
        }
    }

    /// What runs there, but for this program, whose threads come and go.
    fn processes(&self, host: usize) -> Vec<Pid> {
        let Ok(place) = fs::metadata(self.mount(host)) else { return Vec::new() };
        let is_there = |pid: &u32| {
            let seen = fs::metadata(format!("/proc/{pid}/ns/net"));
            seen.is_ok_and(|seen| (seen.dev(), seen.ino()) == (place.dev(), place.ino()))
        };
        let names = fs::read_dir("/proc").expect("it is there").flatten();
        let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let others = pids.filter(|pid| *pid != std::process::id()).filter(is_there);
        others.filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)).collect()
    }

    /// A signal to everything that runs there, until nothing new appears.
    pub fn signal(&self, host: usize, signal: Signal) {
        let mut told: Vec<Pid> = Vec::new();
        loop {
            let new: Vec<Pid> = self.processes(host).into_iter().filter(|pid| !told.contains(pid)).collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                let _ = kill_process(pid, signal);
                told.push(pid);
            }
        }
    }
}

fn interface(from: usize, to: usize) -> String {
    format!("{}-{}", NAMES[from], NAMES[to])
}
