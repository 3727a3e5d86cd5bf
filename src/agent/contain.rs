//! Everything that the service consists of, so that it can be killed whole: a cgroup where one can be made, and the
//! process groups of whatever the agent started.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// Where the kernel shows what runs.
const PROC: &str = "/proc";

/// A cgroup (version 2) of the agent's own.
#[derive(Clone, Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes, or finds, the cgroup of this name below the agent's own one.
    ///
    /// # Errors
    /// If there is no writable cgroup of version 2 here, or the kernel cannot kill one whole (before Linux 5.14).
    pub fn make(name: &str) -> io::Result<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find_map(cgroup2_mount).ok_or_else(|| io::Error::other("not mounted"))?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
        let place = Path::new(mount).join(own).join(name);
        match fs::create_dir(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Cgroup::at(&place)
    }

    /// One that others make and remove, as systemd does with its units: it may not be there now.
    pub fn of_others(place: &Path) -> Cgroup {
        Cgroup(place.into())
    }

    /// An existing one.
    ///
    /// # Errors
    /// If it is none, or may not be killed.
    pub fn at(place: &Path) -> io::Result<Cgroup> {
        fs::OpenOptions::new().write(true).open(place.join("cgroup.kill"))?;
        Ok(Cgroup(place.into()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Kills everything in it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        match fs::write(self.0.join("cgroup.kill"), "1") {
            // Nothing is there, so nothing is in it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn is_empty(&self) -> bool {
        // One that is gone has nothing in it.
        fs::read_to_string(self.0.join("cgroup.events")).map_or_else(
            |error| error.kind() == io::ErrorKind::NotFound,
            |events| events.lines().any(|line| line == "populated 0"),
        )
    }
}

/// The mount point of a line of `mountinfo`, if a cgroup of version 2 is mounted there.
fn cgroup2_mount(line: &str) -> Option<&str> {
    let (before, after) = line.split_once(" - ")?;
    (after.split(' ').next() == Some("cgroup2")).then(|| before.split(' ').nth(4)).flatten()
}

/// What is killed when the service has to be gone.
#[derive(Debug, Default)]
pub struct Containment {
    cgroups: Vec<Cgroup>,
    groups: Mutex<HashSet<i32>>,
}

impl Containment {
    /// With these cgroups; process groups are added as they are made.
    pub fn new(cgroups: Vec<Cgroup>) -> Containment {
        Containment { cgroups, groups: Mutex::default() }
    }

    fn groups(&self) -> std::sync::MutexGuard<'_, HashSet<i32>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes of this group belong to the service, until it is empty.
    pub fn add(&self, group: Pid) {
        let mut groups = self.groups();
        // Numbers of groups that are empty may be given to others.
        if let Ok(alive) = alive_groups(Path::new(PROC)) {
            groups.retain(|group| alive.contains(group));
        }
        groups.insert(group.as_raw_pid());
    }

    /// SIGKILL to everything.
    pub fn kill(&self) {
        for cgroup in &self.cgroups {
            if let Err(error) = cgroup.kill() {
                tracing::error!(cgroup = %cgroup.path().display(), "cannot be killed: {error}");
            }
        }
        self.signal(Signal::KILL);
    }

    /// A signal to all process groups.
    pub fn signal(&self, signal: Signal) {
        let mut groups = self.groups();
        if let Ok(alive) = alive_groups(Path::new(PROC)) {
            groups.retain(|group| alive.contains(group));
        }
        for group in groups.iter().filter_map(|group| Pid::from_raw(*group)) {
            // An error means that it has just ended.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Whether nothing of it runs any more; what cannot be seen counts as running.
    pub fn is_empty(&self) -> bool {
        self.is_empty_by(Path::new(PROC))
    }

    fn is_empty_by(&self, proc: &Path) -> bool {
        let groups = self.groups();
        self.cgroups.iter().all(Cgroup::is_empty)
            && (groups.is_empty()
                || alive_groups(proc)
                    .inspect_err(|error| {
                        tracing::error!("nobody knows what runs: {}: {error}", proc.display());
                    })
                    .is_ok_and(|alive| groups.is_disjoint(&alive)))
    }
}

/// Whether a process of this group runs; what cannot be seen counts as running.
pub fn is_alive(group: Pid) -> bool {
    is_alive_by(Path::new(PROC), group)
}

fn is_alive_by(proc: &Path, group: Pid) -> bool {
    !alive_groups(proc).is_ok_and(|alive| !alive.contains(&group.as_raw_pid()))
}

/// One process, named so that its number cannot be mistaken for that of a later one: by when it began, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named(String);

impl Named {
    /// The process that has this number now; `None` if there is none.
    pub fn now(pid: Pid) -> Option<Named> {
        let stat = fs::read(Path::new(PROC).join(pid.as_raw_pid().to_string()).join("stat")).ok()?;
        let began = began(&String::from_utf8_lossy(&stat))?;
        Some(Named(format!("{} {began}\n", pid.as_raw_pid())))
    }

    /// Writes it down for a later life of the agent.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn note(&self, place: &Path) -> io::Result<()> {
        fs::write(place, &self.0)
    }

    /// The group of the process that was written down there, if it is still the same one.
    pub fn noted(place: &Path) -> Option<Pid> {
        let text = fs::read_to_string(place).ok()?;
        let pid = Pid::from_raw(text.split(' ').next()?.parse().ok()?)?;
        (Named::now(pid)?.0 == text).then_some(pid)
    }
}

/// From `pid (name) state …`: when it began, in ticks since the boot.
fn began(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// The processes whose environment says that an agent with this runtime directory started them, or one that did.
fn marked(runtime: &Path) -> Vec<Pid> {
    let mark = [b"TIEBREAK_RUNTIME=", runtime.as_os_str().as_encoded_bytes()].concat();
    let own = rustix::process::getpid();
    let pids = fs::read_dir(PROC).into_iter().flatten().flatten();
    pids.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let place = Path::new(PROC).join(pid.as_raw_pid().to_string()).join("environ");
            // One that has ended and was not waited for has none.
            fs::read(place).is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|word| word == mark))
        })
        .collect()
}

/// Kills what an earlier life of this agent has left running, wherever it has put itself; returns how many there were.
/// A process that was just being made may be missed, so this is called until it finds none.
pub fn kill_marked(runtime: &Path) -> usize {
    let found = marked(runtime);
    for pid in &found {
        // An error means that it has just ended.
        let _ = rustix::process::kill_process(*pid, Signal::KILL);
    }
    found.len()
}

/// The process groups that have a process which runs: one that has ended and was not waited for does not count.
///
/// # Errors
/// If that cannot be seen: then nothing may be taken for ended.
fn alive_groups(proc: &Path) -> io::Result<HashSet<i32>> {
    let mut alive = HashSet::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        if entry.file_name().to_str().is_none_or(|name| name.parse::<u32>().is_err()) {
            continue;
        }
        match fs::read(entry.path().join("stat")) {
            Ok(stat) => alive.extend(group_of_alive(&String::from_utf8_lossy(&stat))),
            // It has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(alive)
}

/// From `pid (name) state parent group …`; the name may hold anything.
fn group_of_alive(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn the_lines_of_the_kernel_are_read() {
        let line = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
        assert_eq!(cgroup2_mount(line), Some("/sys/fs/cgroup"));
        assert_eq!(cgroup2_mount("36 24 0:31 / /proc rw - proc proc rw"), None);
        assert_eq!(group_of_alive("12 (a ) b) S 1 77 12 0"), Some(77));
        assert_eq!(group_of_alive("12 (sh) Z 1 77 12 0"), None);
    }

    #[test]
    fn what_cannot_be_seen_counts_as_running() {
        let containment = Containment::default();
        let nowhere = Path::new("/nowhere");
        assert!(containment.is_empty_by(nowhere), "nothing was ever started");
        containment.groups().insert(i32::MAX);
        assert!(!containment.is_empty_by(nowhere));
        assert!(containment.is_empty(), "there is no such group");
        // One that may not be looked at.
        let proc = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(proc.path().join("7/stat")).expect("not a file");
        assert!(!containment.is_empty_by(proc.path()));
        let group = Pid::from_raw(i32::MAX).expect("not zero");
        assert!(is_alive_by(nowhere, group) && is_alive_by(proc.path(), group));
        assert!(!is_alive(group), "there is no such group");
    }

    #[test]
    fn a_process_is_known_again_and_not_mistaken_for_another_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("hook");
        assert_eq!(Named::noted(&place), None, "nothing is noted");
        let own = rustix::process::getpid();
        Named::now(own).expect("it runs").note(&place).expect("noted");
        assert_eq!(Named::noted(&place), Some(own));
        fs::write(&place, format!("{} 7\n", own.as_raw_pid())).expect("noted");
        assert_eq!(Named::noted(&place), None, "another one had this number");
        assert_eq!(began("12 (a ) b) S 1 77 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3"), Some(4711));
    }

    #[test]
    fn what_bears_the_mark_is_killed_wherever_it_has_put_itself() {
        let runtime = tempfile::tempdir().expect("a directory");
        let mut child = std::process::Command::new("setsid")
            .args(["sleep", "600"])
            .env("TIEBREAK_RUNTIME", runtime.path())
            .spawn()
            .expect("a process");
        let deadline = crate::edge::clock::Clock.now() + std::time::Duration::from_secs(20);
        while kill_marked(runtime.path()) == 0 {
            assert!(crate::edge::clock::Clock.now() < deadline, "it is not found");
        }
        child.wait().expect("it ends");
        assert_eq!(kill_marked(runtime.path()), 0);
        assert_eq!(kill_marked(&runtime.path().join("other")), 0);
    }

    #[test]
    fn a_group_is_killed_with_its_grandchildren_and_is_empty_then() {
        let containment = Containment::default();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "trap '' TERM; sh -c 'trap \"\" TERM; sleep 600' & wait"])
            .process_group(0)
            .spawn()
            .expect("a shell");
        containment.add(Pid::from_child(&child));
        assert!(!containment.is_empty());
        containment.kill();
        child.wait().expect("it ends");
        let deadline = crate::edge::clock::Clock.now() + std::time::Duration::from_secs(20);
        while !containment.is_empty() {
            assert!(crate::edge::clock::Clock.now() < deadline, "the grandchild is still there");
            std::thread::yield_now();
        }
    }
}
